package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// deletion is a verb that makes one call for each given id. It continues after an error.
func deletion(
	call string, of argument, remove func(ctx context.Context, s *session, id string) error, further ...func(*pflag.FlagSet),
) verb {
	var ignoreNotFound, dryRun bool

	return verb{
		name: "delete", aliases: []string{"rm"}, arguments: []argument{of}, resolves: true,
		short: call + " for each",
		long: call + ` for each ` + string(of.kind) + `, by name or id. It continues after an error.
What is not there is an error of this command, though not of the call, unless the driver
does not list names.`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&dryRun, "dry-run", false, "only print what would be deleted")
			flags.BoolVar(&ignoreNotFound, "ignore-not-found", false, "succeed where there is nothing to delete")

			for _, define := range further {
				define(flags)
			}
		},
		run: func(ctx context.Context, s *session) error {
			var (
				deleted     = []string{}
				doing, done = "deleted", "deleted "
				rows        [][]string
				refused     []error
			)

			listed, known, err := s.objects(ctx, of.kind)
			if err != nil {
				return err
			}

			for _, given := range s.args {
				id := given

				if known {
					if id, err = find(listed, of.kind, given); err != nil {
						if !ignoreNotFound {
							refused = append(refused, fmt.Errorf("%s: nothing to delete: %w", given, err))
						}

						continue
					}
				}

				if dryRun {
					doing, done = "would_delete", "would delete "+string(of.kind)+" "
				} else if err := remove(ctx, s, id); err != nil {
					refused = append(refused, fmt.Errorf("%s: %w", given, err))

					continue
				}

				// A second argument for the same object has nothing to delete.
				listed = slices.DeleteFunc(listed, func(o names.Object) bool { return o.ID == id })
				deleted = append(deleted, id)
				rows = append(rows, []string{done + given})
			}

			return errors.Join(append(refused, s.show(answers{doing: deleted}, rows, deleted...))...)
		},
	}
}
