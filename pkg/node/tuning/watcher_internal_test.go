package tuning

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
)

func TestEventsModifyTheirVolumes(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		event    inotify.Event
		modified []string
		refresh  []string
	}{
		"attributes of a volume in use":      {inotify.Event{Path: "/pool/used.json", Kind: inotify.Appeared}, []string{"used"}, []string{"used"}},
		"attributes of another volume":       {inotify.Event{Path: "/pool/unused.json", Kind: inotify.Appeared}, []string{"unused"}, nil},
		"attributes that are being written":  {inotify.Event{Path: "/pool/used.json", Kind: inotify.Written}, nil, nil},
		"attributes that are being deleted":  {inotify.Event{Path: "/pool/used.json", Kind: inotify.Changed}, nil, nil},
		"a file that has another extension":  {inotify.Event{Path: "/pool/used.json.new", Kind: inotify.Appeared}, nil, nil},
		"an event without the name of files": {inotify.Event{}, nil, nil},
		"lost events":                        {inotify.Event{Kind: inotify.Lost}, nil, []string{"used", "unseen"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var modified []string

			watcher := &Watcher{
				InUse:    func() []string { return []string{"used", "unseen"} },
				IsInUse:  func(id string) bool { return id == "used" },
				Modified: func(id string) { modified = append(modified, id) },
			}
			require.Equal(t, test.refresh, watcher.modified(test.event))
			require.Equal(t, test.modified, modified)
		})
	}
}
