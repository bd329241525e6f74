package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"

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

	// run gets ids in place of names, unless resolves says that it resolves the names itself. It is nil for a group,
	// which only contains others.
	run      func(ctx context.Context, s *session) error
	resolves bool
	verbs    []verb
	// healthCode is true for a command whose exit code 1 is an unhealthy result: an error
	// without a result has 2.
	healthCode bool
	// nameless is true for a command whose answer is about no object, so that -o name is refused.
	nameless bool
}

// argument is a word of the usage line. With a kind it is the name or id of an object. By the order of a verb's
// arguments its words are known: a repeated one comes first, an optional one last. Those with a kind have the same
// one, and at most one without a kind follows them, which is not optional.
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
	words := mapped(v.arguments, func(each argument) string { return each.text })

	return strings.Join(slices.Concat([]string{v.name}, words, strings.Fields(v.options)), " ")
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
		Args:              func(cmd *cobra.Command, args []string) error { return v.check(given, cmd, args) },
		ValidArgsFunction: v.complete(given),
		RunE:              given.inSession(v.runResolved),
	}

	if v.run == nil {
		cmd.Args, cmd.ValidArgsFunction, cmd.RunE = nil, nil, runGroup
	}

	for _, each := range v.verbs {
		cmd.AddCommand(each.command(given))
	}

	if v.flags != nil {
		v.flags(cmd.Flags())
	}

	if v.lists {
		cmd.Flags().Int32Var(&given.pageSize, "max-entries", 0, "ask for this many at a time (default: the driver's choice)")
		cmd.Flags().BoolVarP(&given.watch, "watch", "w", false,
			"show it again whenever it has changed, until interrupted; --timeout does not count")
	}

	if v.progress {
		cmd.Flags().Var(span(&given.progress), "progress",
			"print a long copy's progress on stderr, a line each time (on a terminal it is always shown)")
		cmd.Flags().Lookup("progress").NoOptDefVal = lineInterval
	}

	given.completeFlags(cmd)

	return cmd
}

// runGroup refuses words: by default, cobra prints help and succeeds for a misspelt subcommand.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}

	return UnknownCommand(cmd, args)
}

// check checks the number of arguments, and the required flags: cobra's own ones return an error
// that cannot be distinguished from the driver's.
func (v *verb) check(given *settings, cmd *cobra.Command, args []string) error {
	least, most := len(v.arguments), len(v.arguments)

	if last := most - 1; last >= 0 && v.arguments[last].optional {
		least--
	}

	if slices.ContainsFunc(v.arguments, func(each argument) bool { return each.repeated }) {
		most = math.MaxInt
	}

	switch {
	case len(args) < least:
		return usage(fmt.Errorf("%w: %s", errFewArguments, cmd.UseLine()))
	case len(args) > most:
		return usage(fmt.Errorf("%w, %q: %s", errManyArguments, args[most], cmd.UseLine()))
	case slices.Contains(args, ""):
		return usage(fmt.Errorf("%w: %s", errEmptyArgument, cmd.UseLine()))
	}

	if v.nameless {
		if err := given.refuseNames(); err != nil {
			return err
		}
	}

	for _, name := range v.required {
		if !cmd.Flags().Changed(name) {
			return usage(fmt.Errorf("%w: --%s", errMissingFlag, name))
		}
	}

	return nil
}

func (v *verb) runResolved(ctx context.Context, s *session) error {
	err := v.resolve(ctx, s)

	switch {
	case err == nil && v.lists && s.watch:
		err = s.watching(ctx, func(ctx context.Context) error { return v.run(ctx, s) })
	case err == nil:
		err = v.run(ctx, s)
	}

	if v.healthCode {
		return undetermined(err)
	}

	return err
}

// resolve replaces the names among the arguments by ids: all of them, or all but a last one without a kind.
func (v *verb) resolve(ctx context.Context, s *session) error {
	if v.resolves || len(s.args) == 0 || v.arguments[0].kind == "" {
		return nil
	}

	objects, last := s.args, len(s.args)-1
	if v.arguments[len(v.arguments)-1].kind == "" {
		objects = s.args[:last]
	}

	given := make([]*string, len(objects))
	for i := range objects {
		given[i] = &objects[i]
	}

	err := s.resolve(ctx, v.arguments[0].kind, given...)
	if errors.Is(err, errNoObject) && len(objects) == last && s.names.id(s.args[last]) != "" {
		err = fmt.Errorf("%w; %s is one: the order is %s", err, s.args[last], v.usage())
	}

	return err
}

// complete completes arguments with the names of their kind, and paths.
func (v *verb) complete(given *settings) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		var word argument

		switch at := len(args); {
		case len(v.arguments) > 0 && v.arguments[0].repeated:
			word = v.arguments[0]
		case at < len(v.arguments):
			word = v.arguments[at]
		}

		if word.kind != "" {
			found, _ = given.completeNames(word.kind)(cmd, args, begun)
		}

		if word.isPath {
			return found, cobra.ShellCompDirectiveDefault
		}

		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNames completes a word with the names of a kind, and with ids. It omits names that are arguments already.
func (s *settings) completeNames(kind names.Kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (found []string, _ cobra.ShellCompDirective) {
		_ = s.inSession(func(ctx context.Context, s *session) error {
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

// watchPeriod is the time between two calls of --watch.
const watchPeriod = time.Second

// watching shows something again whenever it has changed, until ctx ends.
func (s *session) watching(ctx context.Context, show func(context.Context) error) error {
	out, before := s.out, ""

	err := wait.PollUntilContextCancel(ctx, watchPeriod, true, func(ctx context.Context) (bool, error) {
		var now strings.Builder

		s.out = &now
		// What an interrupted call has written is a part.
		if err := show(ctx); err != nil || ctx.Err() != nil || now.String() == before {
			return false, err
		}

		before = now.String()
		_, err := io.WriteString(out, before)

		return false, err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted, which is how it ends
	}

	return err
}
