package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// errNoObject is returned for a name or id that no object has.
var errNoObject = errors.New("not found")

// knownNames maps the ids of objects to their names, as far as the driver has reported them.
type knownNames map[string]string

// add adds an object, unless it has no name.
func (n knownNames) add(id, name string) {
	if id != "" && name != "" {
		n[id] = name
	}
}

// of returns an object's name, or its id if it has none.
func (n knownNames) of(id string) string { return cmp.Or(n[id], id) }

// id returns the id of the object that has this name or id, or none.
func (n knownNames) id(text string) string {
	if n[text] != "" {
		return text
	}

	for id, name := range n {
		if name == text {
			return id
		}
	}

	return ""
}

// in returns the text with names in place of ids that follow their kind. Commands in it may be for another
// socket, which knows ids only.
func (n knownNames) in(text string) string {
	for id, name := range n {
		for _, kind := range []names.Kind{names.Volume, names.Snapshot, names.Group} {
			text = strings.ReplaceAll(text, string(kind)+" "+id, string(kind)+" "+name)
		}
	}

	return text
}

// addTo adds names to a JSON document: beside each field volume_id or volumeId it has volume_name or
// volumeName, and so for snapshots and groups.
func (n knownNames) addTo(document any) {
	switch document := document.(type) {
	case []any:
		for _, each := range document {
			n.addTo(each)
		}
	case map[string]any:
		for _, key := range slices.Collect(maps.Keys(document)) {
			n.addTo(document[key])

			id, _ := document[key].(string)

			if field, ok := strings.CutSuffix(key, "_id"); ok && n[id] != "" {
				document[field+"_name"] = n[id]
			} else if field, ok := strings.CutSuffix(key, "Id"); ok && n[id] != "" {
				document[field+"Name"] = n[id]
			}
		}
	}
}

// objects returns the objects of a kind, whose names the session knows from then on. known is false
// for a driver that does not list names.
func (s *session) objects(ctx context.Context, kind names.Kind) (listed []names.Object, known bool, err error) {
	listed, err = names.List(ctx, s.Conn(), kind)
	if status.Code(err) == codes.Unimplemented {
		return nil, false, nil
	}

	for _, each := range listed {
		s.names.add(each.ID, each.Name)
	}

	return listed, err == nil, err
}

// learn gets the names of the objects of some kinds.
func (s *session) learn(ctx context.Context, kinds ...names.Kind) error {
	for _, kind := range kinds {
		if _, _, err := s.objects(ctx, kind); err != nil {
			return err
		}
	}

	return nil
}

// resolve replaces names by ids. With a driver that does not list names, each is an id.
func (s *session) resolve(ctx context.Context, kind names.Kind, given ...*string) error {
	given = slices.DeleteFunc(given, func(text *string) bool { return *text == "" })
	if len(given) == 0 {
		return nil
	}

	listed, known, err := s.objects(ctx, kind)
	if err != nil || !known {
		return err
	}

	for _, text := range given {
		if *text, err = find(listed, kind, *text); err != nil {
			return err
		}
	}

	return nil
}

// find returns the id of the object that has this id or name, or the text with an error.
func find(listed []names.Object, kind names.Kind, text string) (string, error) {
	at := slices.IndexFunc(listed, func(o names.Object) bool { return o.ID == text })
	if at < 0 {
		at = slices.IndexFunc(listed, func(o names.Object) bool { return o.Name == text })
	}

	if at >= 0 {
		return listed[at].ID, nil
	}

	hint := ""
	if similar := similarName(listed, text); similar != "" {
		hint = "; did you mean " + Printable(similar) + "?"
	}

	return text, fmt.Errorf("%w: no %s has the name or id %s%s", errNoObject, kind, Printable(text), hint)
}

// similarName returns a name that is similar to the text, or none. Cobra has the comparison, for commands.
func similarName(listed []names.Object, text string) string {
	command := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, each := range listed {
		if each.Name != "" && !strings.Contains(each.Name, " ") {
			command.AddCommand(&cobra.Command{Use: each.Name, Run: func(*cobra.Command, []string) {}})
		}
	}

	similar := append(command.SuggestionsFor(text), "")

	return similar[0]
}
