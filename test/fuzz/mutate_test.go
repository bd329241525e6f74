package fuzz_test

import (
	"math"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// edits are the bytes that decide what becomes of a valid request. At their
// end everything stays.
type edits struct{ left []byte }

func (e *edits) next() byte {
	if len(e.left) == 0 {
		return 0
	}

	first := e.left[0]
	e.left = e.left[1:]

	return first
}

func (e *edits) index(length int) int { return int(e.next()) % length }

// What becomes of a field; whatever else a byte says, it stays. Most stay, for
// a request with several faults is refused for the first of them.
const (
	clearIt = iota + 1
	change
	descend
	verdicts = 12
)

func (e *edits) message(m protoreflect.Message) {
	fields := m.Descriptor().Fields()

	for i := range fields.Len() {
		field := fields.Get(i)

		switch e.next() % verdicts {
		case clearIt:
			m.Clear(field)
		case change:
			e.field(m, field)
		case descend:
			if field.Message() != nil && !field.IsMap() && !field.IsList() && m.Has(field) {
				e.message(m.Mutable(field).Message())
			} else {
				e.field(m, field)
			}
		}
	}
}

func (e *edits) field(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsMap():
		e.entry(m.Mutable(field).Map(), field)
	case field.IsList():
		e.element(m.Mutable(field).List(), field)
	case field.Message() != nil:
		e.message(m.Mutable(field).Message())
	default:
		m.Set(field, e.scalar(field))
	}
}

func (e *edits) entry(entries protoreflect.Map, field protoreflect.FieldDescriptor) {
	key := e.scalar(field.MapKey()).MapKey()
	if keys := parameterKeys(); e.next()%4 != 0 {
		key = protoreflect.ValueOfString(keys[e.index(len(keys))]).MapKey()
	}

	entries.Set(key, e.scalar(field.MapValue()))
}

func (e *edits) element(list protoreflect.List, field protoreflect.FieldDescriptor) {
	switch {
	case field.Message() == nil:
		list.Append(e.scalar(field))
	case list.Len() > 0 && e.next()%2 == 0:
		e.message(list.Get(e.index(list.Len())).Message())
	default:
		e.message(list.AppendMutable().Message())
	}
}

func (e *edits) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(e.text())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(e.next()%2 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int8(e.next())))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(e.number())) // cut off is as strange as any
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(e.number())
	default:
		return field.Default()
	}
}

func (e *edits) number() int64 {
	all := numbers()

	return all[e.index(len(all))]
}

func numbers() []int64 {
	return []int64{
		0, 1, -1, 511, 4095, 4096, 4097, 1 << 20, 8 << 20, 16<<20 + 1, 1 << 31, 1 << 40,
		math.MaxInt32, math.MinInt32, math.MaxInt64, math.MaxInt64 - 4095, math.MinInt64,
	}
}

// text is one of the strange ones, or made of the edits themselves.
func (e *edits) text() string {
	strange := texts()
	chosen := e.index(len(strange) + 1)

	if chosen < len(strange) {
		return strange[chosen]
	}

	length := min(int(e.next()), len(e.left))
	made := string(e.left[:length])
	e.left = e.left[length:]

	return strings.ToValidUTF8(made, "?")
}

func parameterKeys() []string {
	return []string{
		"pool", "backing", "csi.storage.k8s.io/fstype", "provisioning", "blockSize", "mkfsOptions", "slot", "readonly",
		"csi.storage.k8s.io/pvc/name", "directAssign", "skip-hostmount", "consistency", "unheard-of", "",
	}
}

func texts() []string {
	return []string{
		"", " ", ".", "..", "/", "//", "relative", "../../etc", "a\x00b", "a\nb", "%s%d%n", "💾",
		idle, formatted, device, directory, stagedOne, nobody, strings.ToUpper(nobody) + "x", "../" + idle, idle + ".img",
		older, newer, files, group, memberOne, memberTwo, nameOlder, nameFiles, nameGroup,
		kubelet, kubelet + "/", kubelet + "/new", kubelet + "/no/such/parent", kubelet + "/file", kubelet + "/file/below",
		kubelet + "/full", kubelet + "/fifo", kubelet + "/way-out", kubelet + "/way-out/new", kubelet + "/way-out-file",
		kubelet + "/dangling", kubelet + "/../outside", kubelet + "/./new", kubelet + "//new", kubelet + "/" + strings.Repeat("n", 256),
		kubelet + strings.Repeat("/d", 2040), kubelet + strings.Repeat("/d", 2500),
		outside, outside + "/sentinel", outside + "/new", base, "/proc/self/cwd", "/dev/null", "/dev/loop0",
		staging(idle), staging(formatted), staging(device), staging(directory), staging(stagedOne), pod(idle), pod(formatted),
		pod(device), pod(directory), pod(stagedOne), staging(formatted) + "/inside", staging(directory) + "/inside",
		strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 4097), strings.Repeat("é", 64),
		"image", "directory", "thin", "thick", "filesystem", "none", "default", "ext4", "xfs", "btrfs", "vfat", "512", "4096", "0", "-1", "true", "18446744073709551616",
		"-L x", "-N 1", "-d /etc", "-O ^has_journal", "-E undo_file=/etc/x", "-n", "--rootdir=/etc", "-b 512", "-I 1048576", "-m 101", "; id",
		"ro", "rw", "noatime", "bind", "remount", "loop", "dev", "suid", "context=x", "sb=32768", "data=journal", "errors=panic", "nouuid",
		"journal_path=/dev/loop0", "usrjquota=/etc/passwd", "norecovery", "noload", "subvol=../..", "user_xattr", "x-systemd.automount",
	}
}
