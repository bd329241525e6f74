package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// errNoObject is returned for a name or id that no object has.
var errNoObject = errors.New("not found")

// objects returns the objects of a kind. known is false for a driver that does not list names.
func (d driver) objects(ctx context.Context, kind names.Kind) (listed []names.Object, known bool, err error) {
	listed, err = names.List(ctx, d.Conn(), kind)
	if status.Code(err) == codes.Unimplemented {
		return nil, false, nil
	}

	return listed, err == nil, err
}

// resolve replaces names by ids. With a driver that does not list names, each is an id.
func (d driver) resolve(ctx context.Context, kind names.Kind, given ...*string) error {
	if !slices.ContainsFunc(given, func(text *string) bool { return *text != "" }) {
		return nil
	}

	listed, known, err := d.objects(ctx, kind)
	if err != nil || !known {
		return err
	}

	for _, text := range given {
		if *text == "" {
			continue
		}

		id, err := find(listed, kind, *text)
		if err != nil {
			return err
		}

		*text = id
	}

	return nil
}

// find returns the id of the object that has this id or name.
func find(listed []names.Object, kind names.Kind, text string) (string, error) {
	for _, is := range []func(names.Object) bool{
		func(o names.Object) bool { return o.ID == text },
		func(o names.Object) bool { return o.Name == text },
	} {
		if at := slices.IndexFunc(listed, is); at >= 0 {
			return listed[at].ID, nil
		}
	}

	return "", fmt.Errorf("%w: no %s has the name or id %s%s", errNoObject, kind, Printable(text), suggestion(listed, text))
}

// suggestion returns "; did you mean …?" where an object has a similar name. Cobra has the
// comparison, for commands.
func suggestion(listed []names.Object, text string) string {
	command := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, each := range listed {
		if each.Name != "" && !strings.Contains(each.Name, " ") {
			command.AddCommand(&cobra.Command{Use: each.Name, Run: func(*cobra.Command, []string) {}})
		}
	}

	if similar := command.SuggestionsFor(text); len(similar) > 0 {
		return "; did you mean " + Printable(similar[0]) + "?"
	}

	return ""
}

// complete returns the names and ids that begin with the text, each with a description. It omits
// names that are arguments already.
func (s *session) complete(ctx context.Context, kind names.Kind, begun string) (found []string, err error) {
	listed, _, err := s.objects(ctx, kind)

	for _, each := range listed {
		if name := strings.TrimSpace(each.Name); name != "" && strings.HasPrefix(name, begun) && !slices.Contains(s.args, name) {
			found = append(found, name+"\t"+each.ID)
		} else if strings.HasPrefix(each.ID, begun) && begun != "" {
			found = append(found, each.ID+"\t"+name)
		}
	}

	return found, err
}

// named maps the ids of the objects of some kinds to their names.
func (d driver) named(ctx context.Context, kinds ...names.Kind) (map[string]string, error) {
	named := map[string]string{}

	for _, kind := range kinds {
		listed, _, err := d.objects(ctx, kind)
		if err != nil {
			return nil, err
		}

		for _, each := range listed {
			named[each.ID] = each.Name
		}
	}

	return named, nil
}
