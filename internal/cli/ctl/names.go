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
func (s *session) objects(ctx context.Context, kind names.Kind) (listed []names.Object, known bool, err error) {
	listed, err = names.List(ctx, s.Conn(), kind)
	if status.Code(err) == codes.Unimplemented {
		return nil, false, nil
	}

	return listed, err == nil, err
}

// resolve replaces names by ids. With a driver that does not list names, each is an id.
func (s *session) resolve(ctx context.Context, kind names.Kind, given ...*string) error {
	if !slices.ContainsFunc(given, func(text *string) bool { return *text != "" }) {
		return nil
	}

	listed, known, err := s.objects(ctx, kind)
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

// resolveAll is resolve for the elements of a slice.
func (s *session) resolveAll(ctx context.Context, kind names.Kind, given []string) error {
	elements := make([]*string, len(given))
	for i := range given {
		elements[i] = &given[i]
	}

	return s.resolve(ctx, kind, elements...)
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

// naming resolves the arguments from the first on, count of them or all for -1, before a command
// runs.
func naming(kind names.Kind, first, count int, run func(context.Context, *session) error) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		last := len(s.args)
		if count >= 0 {
			last = min(last, first+count)
		}

		if first < last {
			if err := s.resolveAll(ctx, kind, s.args[first:last]); err != nil {
				return err
			}
		}

		return run(ctx, s)
	}
}

// completeNames completes arguments with the names of a kind, from the first argument on.
func completeNames(given *settings, kind names.Kind, first, last int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) < first || last >= 0 && len(args) > last {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}

		var found []string

		_ = given.inSession(func(ctx context.Context, s *session) error {
			listed, _, err := s.objects(ctx, kind)
			for _, each := range listed {
				if name := strings.TrimSpace(each.Name); name != "" && strings.HasPrefix(name, begun) && !slices.Contains(args, name) {
					found = append(found, name+"\t"+each.ID)
				} else if strings.HasPrefix(each.ID, begun) && begun != "" {
					found = append(found, each.ID+"\t"+name)
				}
			}

			return err
		})(cmd, args)

		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
