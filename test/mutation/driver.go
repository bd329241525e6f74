package main

// driverMutants are defects of what every call passes: socket, gate, limits, log.
func driverMutants() []regression {
	tests := func(tests ...string) command { return in("internal/driver", tests...) }

	return []regression{
		{
			name: "driver/socket-open-to-all", in: "socket.mode",
			old:    `mode = 0o600`,
			new:    `mode = 0o666`,
			breaks: "any user of the machine can call the driver", tests: in("internal/socket", "TestTheListenerKnowsWhetherItsSocketIsInPlace"),
		},
		{
			name: "driver/file-removed-for-socket", in: "socket.removeStale",
			old:    `case info.Mode().Type() != fs.ModeSocket:`,
			new:    `case info.Mode().IsDir():`,
			breaks: "a file at the socket's path is removed", tests: in("internal/socket", "TestListenRefuses"),
		},
		{
			name: "driver/socket-of-another-removed", in: "socket.Listener.remove",
			old:    "	if inPlace {\n",
			new:    "	if inPlace || err == nil {\n",
			breaks: "a driver that ends removes the socket of its successor", tests: tests("TestAnotherDriversSocketIsNotRemoved"),
		},
		{
			name: "driver/secrets-logged", in: "driver.stripped.LogValue",
			old: `text := string(rpc.JSON(rpc.HideSecrets(message)))
`,
			new: `_ = rpc.HideSecrets
	text := fmt.Sprint(message)
`,
			breaks: "secrets of requests are in the log", tests: tests("TestSecretsAndMountFlagsNeverReachTheLog"),
		},
		{
			name: "driver/mount-flags-logged", in: "rpc.hideSecrets",
			old:    `field.Name() == "mount_flags"`,
			new:    `field.Name() == "mountFlags"`,
			breaks: "mount flags with credentials are in the log", tests: tests("TestSecretsAndMountFlagsNeverReachTheLog"),
		},
		{
			name: "driver/tokens-logged", in: "rpc.hideSecrets",
			old:    `marked || key.String() == KeyTokens`,
			new:    `marked`,
			breaks: "service account tokens are in the log", tests: tests("TestTokensOfPodsNeverReachTheLog"),
		},
		{
			name: "driver/secrets-of-streams-logged", in: "driver.guardedStream.RecvMsg",
			old:    `stripped{into}`,
			new:    `into`,
			breaks: "secrets of GetMetadataAllocated are in the log", tests: in("test/driver/requests", "TestSecretsAreHidden"),
		},
		{
			name: "driver/secrets-of-other-kinds-kept", in: "rpc.hideSecrets",
			old:    `message.Clear(field)`,
			new:    ``,
			breaks: "a secret that is no string is kept", tests: in("internal/csi/rpc", "TestHideSecretsOfEachKind"),
		},
		{
			name: "driver/limit-off-by-one", in: "driver.checkTexts",
			old:    `total > limit {`,
			new:    `total >= limit {`,
			breaks: "a field of the largest size that the spec allows is refused", tests: tests("TestEveryFieldOfEveryRequestIsLimited"),
		},
		{
			name: "driver/flags-not-summed", in: "driver.checkTexts",
			old:    `if !field.IsMap() && limit != maxFlags {`,
			new:    `if !field.IsMap() {`,
			breaks: "mount flags together may be larger than the spec allows", tests: tests("TestLimitsCountMountFlagsTogetherAndListsEach"),
		},
		{
			name: "driver/draining-takes-calls", in: "driver.gate.pass",
			old:    `if g.shutting() {`,
			new:    `if g.shutting() && !g.opened() {`,
			breaks: "a driver that ends begins new work", tests: tests("TestShutGateRefusesEveryCall"),
		},
		{
			name: "driver/hang-outlasts-the-drain", in: "driver.UntilSignal",
			old: `			case <-late:
				exit(1)

				return
`,
			new:    ``,
			breaks: "a driver whose storage hangs does not end", tests: tests("TestUntilSignalExitsAfterTheLimit"),
		},
		{
			name: "driver/panic-is-unknown", in: "driver.guard.recovered",
			old:    `return status.Errorf(codes.Internal, "defect of the driver`,
			new:    `return status.Errorf(codes.Unknown, "defect of the driver`,
			breaks: "a defect of the driver has a code that the spec does not have", tests: tests("TestPanicIsInternalAndTheProcessGoesOn"),
		},
		{
			name: "driver/disabled-capability-served", in: "driver.guard.admit",
			old:    `g.serves(info.FullMethod), checkLimits`,
			new:    `g.serves("/"+info.FullMethod), checkLimits`,
			breaks: "a call whose capability is disabled is served", tests: in("test/driver/requests", "TestEveryCapabilityCanBeDisabled"),
		},
		{
			name: "driver/streams-not-limited", in: "driver.guardedStream.RecvMsg",
			old:    `return cmp.Or(undecoded, checkLimits(into))`,
			new:    `return undecoded`,
			breaks: "requests of streams are not checked",
			tests:  in("test/driver/metadata", "TestMetadataRequestsAreLimited"),
		},
		{
			name: "driver/ready-before-recovery", in: "identity.Service.Health",
			old: `	default:
		return false, nil
	}`,
			new: `	default:
		return true, nil
	}`,
			breaks: "Probe says ready while the driver starts", tests: in("pkg/identity", "TestProbeIsNotReadyWhileInitializingAndDoesNotCheck"),
		},
		{
			name: "driver/retry-joins-other-call", in: "operation.Group.joinOrStart",
			old:    `if other.Object == call.Object && proto.Equal(other.Request, call.Request) {`,
			new:    `if other.Object == call.Object {`,
			breaks: "a call gets the answer to another one's arguments", tests: in("internal/operation", "TestSameCallWithOtherArgumentsConflicts"),
		},
		{
			name: "driver/operation-ends-with-caller", in: "operation.Group.joinOrStart",
			old:    `startSpan(context.WithoutCancel(ctx), call)`,
			new:    `startSpan(ctx, call)`,
			breaks: "a format ends when its caller gives up", tests: in("internal/operation", "TestOperationOutlivesItsCaller"),
		},
		{
			name: "driver/proxy-to-itself", in: "driver.notItself",
			old:    `filepath.Clean(own) == filepath.Clean(there) {`,
			new:    `filepath.Clean(own)+"/" == filepath.Clean(there) {`,
			breaks: "a proxy forwards each call to itself", tests: in("test/driver/modes", "TestProxyToItselfIsRefused"),
		},
		{
			name: "driver/failed-pool-ends-the-start", in: "driver.opener.openAll",
			old:    `if errors.Is(err, ErrConfig) || errors.Is(err, pool.ErrControllerRunning) {`,
			new:    `if err != nil {`,
			breaks: "one failed pool keeps the driver from starting",
			tests:  in("test/driver/pools", "TestFailedPoolIsACondition"),
		},
		{
			name: "driver/missing-pool-image-made-again", in: "driver.opener.embed",
			old:    `MustExist: known != "" && plain != known,`,
			new:    `MustExist: known != "" && plain == known,`,
			breaks: "an empty pool.img replaces one whose disk is not mounted",
			tests:  in("test/driver/pools", "TestEmbeddedPoolWithoutItsImageIsRefused"),
		},
		{
			name: "driver/failed-removal-not-reported", in: "driver.failedRemovals",
			old:    `health.NewEntry(health.RemovalFailed,`,
			new:    `health.NewEntry(health.PoolUnreachable,`,
			breaks: "an operator does not see what cannot be removed",
			tests:  command{pkg: "./test/driver/removal", run: "^TestFailedRemovalBlocksNothing$/^volume$"},
		},
		{
			name: "driver/proxies-loop", in: "proxy.Proxy.forward",
			old:    `received.Append(hopKey, p.id)`,
			new:    `received.Append(hopKey, "")`,
			breaks: "two proxies that forward to each other pass on one call without end",
			tests:  in("internal/lab/proxy", "TestLoopOfProxiesIsRefused"),
		},
	}
}
