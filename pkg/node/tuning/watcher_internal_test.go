package tuning

import (
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
)

func TestWhichEventsModifyVolumes(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		event    fsnotify.Event
		modified []string
		refresh  []string
	}{
		"attributes of a volume in use":      {fsnotify.Event{Name: "/pool/used.json", Op: fsnotify.Create}, []string{"used"}, []string{"used"}},
		"attributes of another volume":       {fsnotify.Event{Name: "/pool/unused.json", Op: fsnotify.Create}, []string{"unused"}, nil},
		"attributes that are being written":  {fsnotify.Event{Name: "/pool/used.json", Op: fsnotify.Write}, nil, nil},
		"attributes that are being deleted":  {fsnotify.Event{Name: "/pool/used.json", Op: fsnotify.Remove}, nil, nil},
		"a file that has another extension":  {fsnotify.Event{Name: "/pool/used.json.new", Op: fsnotify.Create}, nil, nil},
		"attributes created and written to":  {fsnotify.Event{Name: "/pool/used.json", Op: fsnotify.Create | fsnotify.Write}, []string{"used"}, []string{"used"}},
		"an event without the name of files": {fsnotify.Event{}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var modified []string

			watcher := &Watcher{
				IsInUse:  func(id string) bool { return id == "used" },
				Modified: func(id string) { modified = append(modified, id) },
			}
			require.Equal(t, test.refresh, watcher.modified(test.event))
			require.Equal(t, test.modified, modified)
		})
	}
}
