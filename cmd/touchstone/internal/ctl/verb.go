package ctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var (
	errMissingFlag   = errors.New("a flag is missing")
	errFewArguments  = errors.New("an argument is missing")
	errEmptyArgument = errors.New("an argument is empty")
	errManyArguments = errors.New("one argument too many")
)

// verb describes a command that is one session with the driver.
type verb struct {
	name      string
	aliases   []string
	arguments []argument
	// options are the flags of the usage line.
	options              string
	short, long, example string

	flags    func(*pflag.FlagSet)
	required []string // names of flags
	// lists defines --watch and --max-entries, and progress --progress.
	lists, progress bool

	// run gets ids in place of names, unless resolves says that it resolves the names itself.
	run      func(ctx context.Context, s *session) error
	resolves bool
	// healthCode is true for a command whose exit code 1 is an unhealthy result: an error
	// without a result has 2.
	healthCode bool
}

// argument is a word of the usage line. With a kind it is the name or id of an object; a verb has
// arguments of one kind. Only the last one may be optional, and only one repeated.
type argument struct {
	text               string
	kind               names.Kind
	repeated, optional bool
	// isPath means that it may be a path.
	isPath bool
}

var (
	oneVolume     = argument{text: "VOLUME", kind: names.Volume}
	manyVolumes   = argument{text: "VOLUME…", kind: names.Volume, repeated: true}
	anyVolumes    = argument{text: "[VOLUME…]", kind: names.Volume, repeated: true, optional: true}
	mountTarget   = argument{text: "VOLUME|PATH", kind: names.Volume, isPath: true}
	oneSnapshot   = argument{text: "SNAPSHOT", kind: names.Snapshot}
	oneGroup      = argument{text: "GROUP", kind: names.Group}
	manySnapshots = argument{text: "SNAPSHOT…", kind: names.Snapshot, repeated: true}
	manyGroups    = argument{text: "GROUP…", kind: names.Group, repeated: true}
	newName       = argument{text: "NAME"}
	newPath       = argument{text: "PATH", isPath: true}
)

// synonyms are words for which other programs have the verb.
var synonyms = map[string][]string{
	"check": {"fsck"}, "delete": {"remove", "destroy"}, "expand": {"resize", "grow", "extend"}, getName: {"show", "describe", "inspect"},
	"rescue": {"recover", "salvage", "undelete"}, "restore": {"rollback", "revert"}, "stats": {"df", "usage"}, "umount": {"detach", "eject"},
}

// usage returns the verb with its arguments and flags.
func (v *verb) usage() string {
	words := []string{v.name}
	for _, each := range v.arguments {
		words = append(words, each.text)
	}

	return strings.Join(append(words, strings.Fields(v.options)...), " ")
}

// command builds the command.
func (v *verb) command(given *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:               v.usage(),
		Aliases:           v.aliases,
		SuggestFor:        synonyms[v.name],
		Short:             v.short,
		Long:              v.long,
		Example:           v.example,
		Args:              v.check,
		ValidArgsFunction: v.complete(given),
		RunE:              given.inSession(v.runResolved),
	}

	if v.flags != nil {
		v.flags(cmd.Flags())
	}

	if v.lists {
		given.defineList(cmd.Flags())
	}

	if v.progress {
		given.defineProgress(cmd.Flags())
	}

	given.completeFlags(cmd)

	return cmd
}

// check checks the number of arguments, and the required flags: cobra's own ones return an error
// that cannot be distinguished from the driver's.
func (v *verb) check(cmd *cobra.Command, args []string) error {
	least, most := len(v.arguments), len(v.arguments)

	for _, each := range v.arguments {
		if each.optional {
			least--
		}

		if each.repeated {
			most = math.MaxInt
		}
	}

	if len(args) < least {
		return usage(fmt.Errorf("%w: %s", errFewArguments, cmd.UseLine()))
	}

	if len(args) > most {
		return usage(fmt.Errorf("%w, %q: %s", errManyArguments, args[most], cmd.UseLine()))
	}

	if slices.Contains(args, "") {
		return usage(fmt.Errorf("%w: %s", errEmptyArgument, cmd.UseLine()))
	}

	for _, name := range v.required {
		if !cmd.Flags().Changed(name) {
			return usage(fmt.Errorf("%w: --%s", errMissingFlag, name))
		}
	}

	return nil
}

// argument returns what describes the word at an index of so many, or an argument without a kind.
func (v *verb) argument(index, count int) argument {
	for _, each := range v.arguments {
		words := 1
		if each.repeated {
			words += max(count-len(v.arguments), 0)
		}

		if index < words {
			return each
		}

		index -= words
	}

	return argument{}
}

func (v *verb) runResolved(ctx context.Context, s *session) error {
	err := v.resolve(ctx, s)
	if err == nil {
		err = s.watching(ctx, func(ctx context.Context) error { return v.run(ctx, s) })
	}

	if v.healthCode {
		return undetermined(err)
	}

	return err
}

// resolve replaces the names among the arguments by ids.
func (v *verb) resolve(ctx context.Context, s *session) error {
	if v.resolves {
		return nil
	}

	var (
		kind  names.Kind
		given []*string
	)

	for i := range s.args {
		if each := v.argument(i, len(s.args)); each.kind != "" {
			kind, given = each.kind, append(given, &s.args[i])
		}
	}

	err := s.resolve(ctx, kind, given...)

	last := len(s.args) - 1
	if errors.Is(err, errNoObject) && last > 0 && v.argument(last, last+1).kind == "" && s.names.id(s.args[last]) != "" {
		err = fmt.Errorf("%w; %s is one: the order is %s", err, s.args[last], v.usage())
	}

	return err
}

// complete completes arguments with the names of their kind, and paths.
func (v *verb) complete(given *settings) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		word := v.argument(len(args), len(args)+len(v.arguments))

		if word.kind != "" {
			found, _ = given.completeNames(word.kind)(cmd, args, begun)
		}

		if word.isPath {
			return found, cobra.ShellCompDirectiveDefault
		}

		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNames completes a word with the names of a kind.
func (s *settings) completeNames(kind names.Kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		_ = s.inSession(func(ctx context.Context, s *session) (err error) {
			found, err = s.complete(ctx, kind, begun)

			return err
		})(cmd, args)

		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
