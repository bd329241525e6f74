package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOnlyTestsThatReachAMutantRun has tests that call the first of two functions.
func TestOnlyTestsThatReachAMutantRun(t *testing.T) {
	t.Parallel()

	together := &switched{functions: map[string][]string{"pkg/p": {".first", ".second"}}}
	calls, _, err := together.recordReached(func(dir string) (verdict, error) {
		return verdict{}, os.WriteFile(filepath.Join(dir, reachedName("pkg/p")), []byte{1, 0}, 0o600)
	})
	require.NoError(t, err)

	tests := command{pkg: "./pkg/p"}
	without := &baselines{changed: map[string][]position{
		"of the first": {{"pkg/p", 0}}, "of the second": {{"pkg/p", 1}}, "of both": {{"pkg/p", 0}, {"pkg/p", 1}},
	}}
	require.True(t, without.mayReach(tests, "of the second"), "want: all tests run before it is known what they call")

	without.add(tests, time.Second, calls)

	for name, want := range map[string]bool{
		"of the first": true, "of the second": false, "of both": true, "with a build of its own": true,
	} {
		require.Equal(t, want, without.mayReach(tests, name), "want: whether the tests run for the mutant %s", name)
	}

	require.Equal(t, 3*time.Second+slack, without.limit(tests), "want: the limit follows the time without a mutant")

	without.leaveOut(tests)
	require.False(t, without.mayReach(tests, "of the first"), "want: tests that fail without a mutant do not run")
	require.False(t, without.mayReach(tests, "with a build of its own"), "want: tests that fail without a mutant do not run")
}
