package recent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/recent"
)

func TestTheOldestKeyIsForgotten(t *testing.T) {
	t.Parallel()

	m := recent.NewMap[string, int](3)
	values := func() []int { return []int{m.Get("a"), m.Get("b"), m.Get("c"), m.Get("d"), m.Get("e")} }

	for value, key := range []string{"a", "b", "c"} {
		m.Put(key, value+1)
	}

	m.Put("a", 9)
	require.Equal(t, []int{9, 2, 3, 0, 0}, values(), "a key that is there takes no space")

	m.Put("d", 4)
	require.Equal(t, []int{0, 2, 3, 4, 0}, values(), "the one that was added first is forgotten")

	m.DeleteValues(func(value int) bool { return value == 3 })
	require.Equal(t, []int{0, 2, 0, 4, 0}, values())

	m.Put("a", 1)
	require.Equal(t, []int{1, 2, 0, 4, 0}, values(), "a deleted key leaves space")

	m.Put("e", 5)
	require.Equal(t, []int{1, 0, 0, 4, 5}, values())
}
