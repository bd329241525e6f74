package ctl

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// deletion is a command that makes one call for each given id. It continues after an error.
func deletion(given *settings, call string, kind names.Kind, remove func(ctx context.Context, s *session, id string) error) *cobra.Command {
	var ignoreNotFound bool

	cmd := &cobra.Command{
		Use:     "delete " + strings.ToUpper(string(kind)) + "…",
		Aliases: []string{"rm"},
		Short:   call + " for each",
		Long: call + ` for each ` + string(kind) + `, by name or id. It continues after an error.
What is not there is an error of this command, though not of the call, unless the driver
does not list names.`,
		Args:              atLeast(1),
		ValidArgsFunction: completeNames(given, kind, 0, -1),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			var (
				deleted = []string{}
				rows    [][]string
				refused []error
			)

			listed, known, err := s.objects(ctx, kind)
			if err != nil {
				return err
			}

			for _, given := range s.args {
				id := given

				if known {
					if id, err = find(listed, kind, given); err != nil {
						if !ignoreNotFound {
							refused = append(refused, fmt.Errorf("%s: nothing to delete: %w", given, err))
						}

						continue
					}
				}

				if err := remove(ctx, s, id); err != nil {
					refused = append(refused, fmt.Errorf("%s: %w", given, err))

					continue
				}

				deleted = append(deleted, id)
				rows = append(rows, []string{"deleted " + given})
			}

			return errors.Join(append(refused, s.show(answers{"deleted": deleted}, rows, deleted...))...)
		}),
	}
	cmd.Flags().BoolVar(&ignoreNotFound, "ignore-not-found", false, "succeed where there is nothing to delete")

	return cmd
}
