package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var errUnknownCommand = errors.New("unknown command")

// commandLine is the key of the command line in a command's context.
type commandLine struct{}

// Execute runs the command of a command line. Hints about a wrong command repeat the flags of the line, which
// cobra does not hand to the command.
func Execute(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)

	return root.ExecuteContext(context.WithValue(ctx, commandLine{}, args))
}

// FlagError returns the error of a flag with its remedy. Words before it that are no command are the cause of the
// error, as the flag is one of the command that was meant.
func FlagError(command *cobra.Command, err error) error {
	if words := command.Flags().Args(); command.HasSubCommands() && len(words) > 0 {
		return UnknownCommand(command, words)
	}

	hint := ";"
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		hint = flagHint(command, unknown.GetSpecifiedName())
	}

	return usage(fmt.Errorf("%w%s see %s --help", err, hint, command.CommandPath()))
}

// flagHint returns how an error goes on: the similar flag of a command, or those commands beside and below it that
// have the flag.
func flagHint(command *cobra.Command, name string) string {
	var flags []names.Object

	command.Flags().VisitAll(func(flag *pflag.Flag) { flags = append(flags, names.Object{Name: flag.Name}) })

	if similar := similarName(flags, name); similar != "" {
		return "; did you mean --" + similar + "? Or"
	}

	var others []string

	group := command
	if !isGroup(group) && group.HasParent() {
		group = group.Parent()
	}

	for _, each := range group.Commands() {
		if each.LocalFlags().Lookup(name) != nil {
			others = append(others, each.CommandPath())
		}
	}

	if len(others) > 0 {
		return "; it is a flag of " + strings.Join(others, ", ") + ";"
	}

	return ";"
}

// UnknownCommand returns the error of words of which the first is no command of parent, with the command
// that they may mean.
func UnknownCommand(parent *cobra.Command, words []string) error {
	const distance = 2

	var meant []string

	given := givenAfter(parent, words)
	mean := func(found *cobra.Command) { meant = append(meant, meantLine(found, given)) }
	parent.SuggestionsMinimumDistance = distance

	similar := parent.SuggestionsFor(words[0])
	if at := slices.IndexFunc(parent.Commands(), func(c *cobra.Command) bool { return slices.Contains(c.SuggestFor, words[0]) }); at >= 0 {
		similar = []string{parent.Commands()[at].Name()}
	}

	for _, name := range similar {
		found, _, _ := parent.Find([]string{name})
		mean(found)
	}

	if len(meant) == 0 {
		eachCommand(parent.Root(), func(each *cobra.Command) {
			if each.HasParent() && (each.Name() == words[0] || each.HasAlias(words[0])) {
				mean(each)
			}
		})
	}

	if len(meant) == 0 {
		return usage(fmt.Errorf("%w %q; see %s --help", errUnknownCommand, words[0], parent.CommandPath()))
	}

	return usage(fmt.Errorf("%w %q; did you mean %s? See %s --help",
		errUnknownCommand, words[0], strings.Join(meant, " or "), parent.CommandPath()))
}

// givenAfter returns the words and flags of the command line behind those of parent, without the first word.
func givenAfter(parent *cobra.Command, words []string) []string {
	line, _ := parent.Context().Value(commandLine{}).([]string)
	_, given, _ := parent.Root().Find(line)

	at := slices.Index(given, words[0])
	if at < 0 {
		return words[1:]
	}

	return slices.Concat(given[:at], given[at+1:])
}

// meantLine returns a command with the words and flags that follow it, or the command's usage if it does not
// accept them. A group with words for none of its commands is meant to create.
func meantLine(found *cobra.Command, given []string) string {
	found, given, _ = found.Find(given)

	if created, _, _ := found.Find([]string{createName}); len(given) > 0 && !strings.HasPrefix(given[0], "-") {
		found = created
	}

	line := []string{found.CommandPath()}
	if isGroup(found) {
		return line[0]
	}

	var flags []string

	_ = found.InheritedFlags() // adds them to Flags
	err := found.Flags().ParseAll(given, func(flag *pflag.Flag, value string) error {
		flags = append(flags, flagText(flag, value))

		return found.Flags().Set(flag.Name, value)
	})

	words := found.Flags().Args()
	if err != nil || found.ValidateArgs(words) != nil {
		return strings.TrimSuffix(found.UseLine(), " [flags]")
	}

	return strings.Join(slices.Concat(line, mapped(words, shellWord), flags), " ")
}

// isGroup reports whether a command only contains others.
func isGroup(command *cobra.Command) bool { return command.HasSubCommands() && command.Args == nil }

// mountFlag names the flag whose values may be secrets, as the spec says of mount_flags.
const mountFlag = "mount-flag"

// flagText returns a flag as it may stand in a command line, with FLAG in place of a secret.
func flagText(flag *pflag.Flag, value string) string {
	name := "--" + flag.Name
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand
	}

	switch {
	case flag.Name == mountFlag:
		return name + " FLAG"
	case flag.NoOptDefVal == "":
		return name + " " + shellWord(value)
	case flag.NoOptDefVal == value:
		return name
	default:
		return name + "=" + shellWord(value)
	}
}

// shellWord quotes a text that a shell would not take for one word.
func shellWord(text string) string {
	if text != "" && !strings.ContainsAny(text, " \t\n\"'`$&|;<>()*?[]{}~#!\\") {
		return text
	}

	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// eachCommand calls use with a command and with those below it, but for hidden ones.
func eachCommand(command *cobra.Command, use func(*cobra.Command)) {
	use(command)

	for _, each := range command.Commands() {
		if each.IsAvailableCommand() {
			eachCommand(each, use)
		}
	}
}
