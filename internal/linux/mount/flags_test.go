package mount_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

func TestParseFlagsRefuses(t *testing.T) {
	t.Parallel()

	for _, given := range []string{
		"", ",", ",,", "=value", "nul\x00", "ro=1", "noatime=yes",
		"bind", "rbind", "move", "remount", "loop", "loop=/dev/loop0", "offset=1", "sizelimit=1", "encryption=x",
		"shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable",
		"source=/dev/sda", "device=/dev/sda", "journal_dev=8", "journal_path=/dev/sda", "logdev=/dev/sda",
		"rtdev=/dev/sda", "X-mount.mkdir", "noatime,bind", "noatime, bind,remount",
		strings.Repeat("k", 256), "key=" + strings.Repeat("v", 256),
	} {
		_, err := mount.ParseFlags([]string{"noatime", given})
		require.ErrorIsf(t, err, mount.ErrMountFlag, "%q", given)
		require.NotContains(t, err.Error(), "/dev/", "values stay out of messages")
	}
}

func TestParseFlagsTakesWhatFsconfigTakes(t *testing.T) {
	t.Parallel()

	const most = 255

	for excess, want := range map[int]error{-1: nil, 0: nil, 1: mount.ErrMountFlag} {
		key, value := strings.Repeat("k", most+excess), strings.Repeat("v", most+excess)

		for given, message := range map[string]string{
			key:            fmt.Sprintf("bad mount flag %q: its name has 256 bytes and the kernel takes 255", key),
			"key=" + value: `bad mount flag "key": its value has 256 bytes and the kernel takes 255`,
		} {
			options, err := mount.ParseFlags([]string{given})
			require.ErrorIs(t, err, want, "a name or value with %d bytes", most+excess)

			if err == nil {
				require.Equal(t, "rw,relatime,"+strings.TrimSuffix(given, "="+value), options.String())
			} else {
				require.EqualError(t, err, message)
				require.Equal(t, mount.Options{}, options)
			}
		}
	}
}

func TestTheLastFlagDecidesReadOnly(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		given []string
		want  bool
	}{
		{nil, false},
		{[]string{"defaults"}, false},
		{[]string{"ro"}, true},
		{[]string{"rw"}, false},
		{[]string{"rw", "ro"}, true},
		{[]string{"ro", "rw"}, false},
		{[]string{"noatime,ro"}, true},
		{[]string{`context="a,ro"`}, false},
	} {
		options := flags(t, test.given...)
		require.Equal(t, test.want, options.ReadOnly(), "%v", test.given)
		require.True(t, options.WithReadOnly().ReadOnly(), "want: WithReadOnly makes the options read-only")
		require.Equal(t, test.want, options.ReadOnly(), "WithReadOnly must not change its receiver")
	}
}

func TestOptionsPrintNoValues(t *testing.T) {
	t.Parallel()

	options := flags(t, "ro", "nodev", `context="system_u:object_r:secret_t:s0:c1,c2"`, "password=secret")

	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		printed := fmt.Sprintf(format, options)
		require.NotContains(t, printed, "secret")
		require.Contains(t, printed, "password")
		require.Contains(t, printed, "nodev")
	}
}

func TestMessagesOmitTheValues(t *testing.T) {
	t.Parallel()

	options := flags(t, "password=secret", `context="a,b,c"`, "commit=5", "id=four", "data=abc")
	require.Equal(t, "bad … in context …, … hidden, loop5 and abc untouched",
		mount.WithoutValues(options, "bad secret in context a,b,c, four hidden, loop5 and abc untouched"))
}

func TestContextsAsText(t *testing.T) {
	t.Parallel()

	for given, want := range map[string]string{
		`compress=zstd,context="a:s0:c1,c2",nodatacow`: `rw,relatime,compress,context="a:s0:c1,c2",nodatacow`,
		`fscontext=a`:         `rw,relatime,fscontext="a"`,
		`compress=zstd,noacl`: "",
	} {
		options := flags(t, given)
		before := options.String()

		got, found := mount.ContextsAsText(options)
		if want == "" {
			require.False(t, found, "want: no context in %s", given)

			continue
		}

		require.True(t, found, "want: a context in %s", given)
		require.Equal(t, want, got)
		require.Equal(t, before, options.String(), "want: the options themselves stay")
	}
}

func FuzzParseFlags(f *testing.F) {
	for _, given := range []string{
		"ro", "noatime,nodev", `context="a,b"`, "data=ordered", "bind", "=", ",", `"`, `a="`, "x-systemd.foo=1", "k=v=w",
		"\x00", "loop",
	} {
		f.Add(given, "value")
	}

	f.Fuzz(func(t *testing.T, key, value string) {
		const secret = "SENSITIVE"

		options, err := mount.ParseFlags([]string{key, key + "=" + secret + value})
		if err != nil {
			require.ErrorIs(t, err, mount.ErrMountFlag)

			if !strings.Contains(key+value, ",") && !strings.Contains(key, secret) {
				require.NotContains(t, err.Error(), secret)
			}

			return
		}

		for name := range strings.SplitSeq(options.String(), ",") {
			require.NotContains(t, []string{"bind", "rbind", "move", "remount", "loop", "source", "device"}, name)
		}

		require.True(t, options.WithReadOnly().ReadOnly(), "want: WithReadOnly makes the options read-only")
	})
}
