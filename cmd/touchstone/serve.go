package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/flags"
	"github.com/touchstone-csi/touchstone/internal/driver"
)

// gcPercent bounds garbage to half of the live heap.
const gcPercent = 50

// logTimeout bounds the writing of the last line to the log.
const logTimeout = 100 * time.Millisecond

func newServeCommand() *cobra.Command {
	config := &driver.Config{}
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve CSI calls on a unix socket until SIGTERM (the default command)",
		Long: `Serve CSI calls on a unix socket. SIGTERM or SIGINT drains: running operations
finish, then the process ends with 0. Another signal later than 0.2 s ends it at once with 1.

Every flag is also an environment variable (TOUCHSTONE_ and the flag's name in
upper case, dashes as underscores) and a key of the YAML file that --config
names. A flag wins over the environment, the environment over the file.
CSI_ENDPOINT is the endpoint where neither --endpoint nor TOUCHSTONE_ENDPOINT is.`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error { return serve(command, config) },
	}
	flags.Define(command.Flags(), config)

	return command
}

// complete adds to a configuration what is not a setting, and refuses what cannot work, before anything is
// opened or made.
func complete(config *driver.Config, log io.Writer) error {
	config.Version, config.Commit = thisBuild().version, thisBuild().commit
	config.Log = newLogger(log, config.LogFormat, config.Verbosity)

	return config.Check()
}

// newLogger logs as text unless the format is json.
func newLogger(to io.Writer, format string, verbosity int) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: replaceAttr}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}

	return slog.New(slog.NewTextHandler(to, options))
}

// replaceAttr gives text and JSON one schema: a line of verbosity 4 has level=INFO v=4, where slog
// would write INFO-4, and durations are seconds.
func replaceAttr(groups []string, attr slog.Attr) slog.Attr {
	switch value := attr.Value.Any().(type) {
	case slog.Level:
		if len(groups) > 0 || value >= slog.LevelInfo {
			return attr
		}

		return slog.Attr{Value: slog.GroupValue(slog.String(slog.LevelKey, slog.LevelInfo.String()), slog.Int("v", -int(value)))}
	case time.Duration:
		return slog.Float64(attr.Key, value.Seconds())
	default:
		return attr
	}
}

func serve(command *cobra.Command, config *driver.Config) error {
	if err := complete(config, command.ErrOrStderr()); err != nil {
		return usageError(command, err)
	}

	// See docs/decisions/0013: the records of volumes are most of the heap, and Go's
	// default would allow as much garbage.
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
	}

	// Kubernetes' libraries log through klog, whichever logger we have.
	klog.SetSlogLogger(config.Log)

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	ctx, stop := driver.UntilSignal(command.Context(), signals, config.DrainTimeout, func(code int) {
		time.AfterFunc(logTimeout, func() { os.Exit(code) }) // standard error may hang, too
		config.Log.Error("ended before the drain: at a second signal, or something hangs for longer than --drain-timeout")
		os.Exit(code)
	})
	defer stop()

	err := runUntil(ctx, config)
	if errors.Is(err, driver.ErrDrain) {
		return exitWith(exitNotWell, err)
	}

	return exitWith(exitCannot, err)
}

func runUntil(ctx context.Context, config *driver.Config) error {
	switch {
	case config.ProxyEndpoint != "":
		return driver.Forward(ctx, *config, config.ProxyEndpoint)
	case config.ProxyListen != "":
		return driver.ForwardPaired(ctx, *config, config.ProxyListen)
	}

	built, err := driver.New(ctx, *config)
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // a start that was called off has not failed
	}

	if err != nil {
		return err
	}

	return built.Run(ctx)
}
