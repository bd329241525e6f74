package main

// observerMutants are defects of the call log and of the checks of the CO.
func observerMutants() []regression {
	record := func(tests ...string) command { return in("internal/lab/calls", tests...) }
	check := func(tests ...string) command { return in("internal/lab/strict", tests...) }

	return []regression{
		{
			name: "calls/metadata-kept", in: "calls.Recorder.readable",
			old:    `!r.config.KeepSecrets && !slices.Contains(shownMetadata, key)`,
			new:    `r.config.KeepSecrets && !slices.Contains(shownMetadata, key)`,
			breaks: "credentials of metadata are in the call log", tests: record("TestCallIsRecordedCompletely"),
		},
		{
			name: "calls/secrets-kept", in: "calls.Recording.encode",
			old: `	if !b.recorder.config.KeepSecrets {
		typed`,
			new: `	if b.recorder.config.KeepSecrets {
		typed`,
			breaks: "secrets are in the call log", tests: record("TestCallIsRecordedCompletely"),
		},
		{
			name: "calls/memory-unbounded", in: "calls.Recorder.add",
			old:    `len(r.kept) > r.config.MaxCalls || r.bytes > r.config.MaxBytes`,
			new:    `len(r.kept) > r.config.MaxCalls`,
			breaks: "large calls are kept without a limit", tests: record("TestMemoryIsBounded"),
		},
		{
			name: "calls/wait-for-new", in: "calls.Recorder.wait",
			old: `	position, result := uint64(0), &WaitResult{Calls: []*Call{}}
	if wanted.New {`,
			new: `	position, result := uint64(0), &WaitResult{Calls: []*Call{}}
	if !wanted.New {`,
			breaks: "a wait misses a call that ended before it", tests: record("TestAWaitEndsWithItsTimeout"),
		},
		{
			name: "calls/full-disk-uncounted", in: "calls.file.append",
			old: `	f.lost.Add(1)
	f.torn`,
			new: `	f.lost.Add(0)
	f.torn`,
			breaks: "lines that a full disk loses are not counted", tests: record("TestFullDiskFailsNoCall"),
		},
		{
			name: "strict/unknown-is-a-violation", in: "strict.volume.attachedTo",
			old: `	case v.fresh:
		return no`,
			new: `	case true:
		return no`,
			breaks: "what is unknown after a start is reported", tests: check("TestLegitimatePatternsAreNoViolations"),
		},
		{
			name: "strict/old-volume-is-new", in: "strict.createdSince",
			old:    `return !time.Unix(seconds, nanoseconds).Before(since.Truncate(time.Millisecond))`,
			new:    `return seconds+nanoseconds > 0`,
			breaks: "a volume of the run before counts as new", tests: check("TestLegitimatePatternsAreNoViolations"),
		},
		{
			name: "strict/gone-callers-conflict", in: "strict.runningCalls.check",
			old:    `other.ctx.Err() == nil && other.digest`,
			new:    `other.digest`,
			breaks: "a call after a timeout is reported", tests: check("TestLegitimatePatternsAreNoViolations"),
		},
		{
			name: "strict/token-kept-by-failure", in: "strict.pages.end",
			old:    `(err != nil || c.ctx.Err() != nil) && issued`,
			new:    `err != nil && issued`,
			breaks: "a page that the CO has not got cannot be requested again", tests: check("TestLegitimatePatternsAreNoViolations"),
		},
		{
			name: "strict/not-refused", in: "strict.Monitor.begin",
			old:    `begun := m.config.Mode != Refuse || len(found) == 0`,
			new:    `begun := m.config.Mode != Off || len(found) == 0`,
			breaks: "--strict=refuse refuses nothing", tests: check("TestRefuseReturnsFailedPrecondition"),
		},
		{
			name: "strict/kubernetes-keys", in: "strict.sameContext",
			old:    `!ok && !addedByCO(key)`,
			new:    `!ok`,
			breaks: "keys that Kubernetes adds to a volume_context are reported", tests: check("TestLegitimatePatternsAreNoViolations"),
		},
	}
}
