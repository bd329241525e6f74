package mount_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

const manyMounts = 1000

func makeMounts(b *testing.B, dir string) {
	b.Helper()
	mountTmpfs(b, dir)

	for number := range manyMounts {
		require.NoError(b, unix.Mount(dir, makeDir(b, dir, strconv.Itoa(number)), "", unix.MS_BIND, ""))
	}
}

func BenchmarkMounted(b *testing.B) {
	needRoot(b)

	dir, _ := allowedDir(b)
	makeMounts(b, dir)

	for name, prepare := range map[string]func(*mount.AllowedDirs){
		"statmount": func(*mount.AllowedDirs) {},
		"mountinfo": mount.ReadMountinfo,
	} {
		b.Run(name, func(b *testing.B) {
			dirs, err := mount.NewAllowedDirs(dir)
			require.NoError(b, err)
			prepare(dirs)

			target := find(b, dirs, dir+"/500")

			for b.Loop() {
				_, mounted, err := target.Mounted()
				if err != nil || !mounted {
					b.Fatal(mounted, err)
				}
			}
		})
	}
}

func BenchmarkList(b *testing.B) {
	needRoot(b)

	dir, _ := allowedDir(b)
	makeMounts(b, dir)

	for b.Loop() {
		points, err := mount.List()
		if err != nil || len(points) < manyMounts {
			b.Fatal(len(points), err)
		}
	}
}

func BenchmarkFind(b *testing.B) {
	dir, dirs := allowedDir(b)
	path := makeDir(b, dir, "pods", "uid", "volumes", "kubernetes.io~csi", "pvc") + "/mount"

	for b.Loop() {
		target, err := dirs.Target(path)
		if err != nil {
			b.Fatal(err)
		}

		target.Close()
	}
}

// BenchmarkPublish is what a publish and its unpublish do to the mount table,
// with 1000 mounts there.
func BenchmarkPublish(b *testing.B) {
	needRoot(b)

	dir, dirs := allowedDir(b)
	makeMounts(b, makeDir(b, dir, "others"))

	staging, target := findDir(b, dirs, dir+"/staging"), findDir(b, dirs, dir+"/target")
	mountTmpfs(b, staging.Path())

	readOnly := flags(b, "ro", "nodev")

	for b.Loop() {
		if err := publish(staging, target, readOnly); err != nil {
			b.Fatal(err)
		}

		if err := target.Unmount(); err != nil {
			b.Fatal(err)
		}
	}
}

func publish(staging, target *mount.Target, options mount.Options) error {
	source, err := staging.Open()
	if err != nil {
		return err
	}

	defer source.Close()

	tree, err := mount.Bind(source, options)
	if err != nil {
		return err
	}

	defer tree.Close()

	return tree.Attach(target)
}
