package main

// healthMutants are defects of volume health and of the kernel's events.
func healthMutants() []mutant {
	monitor := func(tests ...string) command { return in("pkg/health", tests...) }
	events := func(tests ...string) command { return in("pkg/health/events", tests...) }
	return []mutant{
		{
			name: "health/older-observation-wins", file: "pkg/health/cache.go",
			old:    `return at.After(old.ObservedAt)`,
			new:    `return !at.IsZero()`,
			breaks: "a slow probe overwrites what a later one has found", tests: monitor("TestSetKeepsOnlyWhatIsNewer", "TestLateObservation"),
		},
		{
			name: "health/forgotten-comes-back", file: "pkg/health/cache.go",
			old:    `forgotten && !at.After(forgottenAt) {`,
			new:    `forgotten && at.After(forgottenAt) {`,
			breaks: "a deleted volume gets a condition again",
			tests:  monitor("TestForgetDropsWhatWasObservedBefore", "TestForgetDropsRunningProbes", "TestForgetDropsWhatIsKnownOfTheFuture"),
		},
		{
			name: "health/repaired-stays-listed", file: "pkg/health/cache.go",
			old: `		c.abnormal.Delete(record.ID)
	}

	c.onChange(changes)`,
			new: `		_ = old
	}

	c.onChange(changes)`,
			breaks: "a repaired volume is still listed as unhealthy", tests: monitor("TestAbnormalIsInOrder"),
		},
		{
			name: "health/relist-forgets-nothing", file: "pkg/health/cache.go",
			old:    `changes = append(changes, c.drop(record)...)`,
			new:    `_ = record`,
			breaks: "volumes that are gone keep their conditions", tests: monitor("TestRelistLooksAtAll", "TestRelistKeepsNewerRecords"),
		},
		{
			name: "health/usage-lost", file: "pkg/health/cache.go",
			old:    `record.Usage = old.Usage`,
			new:    `_ = old.Usage`,
			breaks: "the last known usage is lost with each probe", tests: monitor("TestUsageStaysUntilThereIsANewerOne"),
		},
		{
			name: "health/since-renewed", file: "pkg/health/cache.go",
			old:    `record.Since = since(old, record)`,
			new:    `record.Since = since(nil, record)`,
			breaks: "a condition looks new with each probe", tests: monitor("TestSinceOutlivesRenewals"),
		},
		{
			name: "health/lost-events-ignored", file: "pkg/health/sources.go",
			old:    `if event.Kind == Lost {`,
			new:    `if event.Kind == Lost && m.config.Concern == nil {`,
			breaks: "what happened while events were lost is not probed", tests: monitor("TestLostEventsProbeAllVolumes"),
		},
		{
			name: "health/event-during-probe-dropped", file: "pkg/health/queue.go",
			old: `	m.queue.Done(p.subject.id)
`,
			new: `	m.queue.Done(p.subject.id)
	if m.queue.Len() > 0 {
		again, _ := m.queue.Get()
		m.queue.Done(again)
	}
`,
			breaks: "a change during a probe is not seen", tests: monitor("TestEventDuringAProbeTriggersAnother"),
		},
		{
			name: "health/hanging-probe-not-reported", file: "pkg/health/queue.go",
			old: `	m.storeFailure(p, probeTimedOut)
`,
			new:    ``,
			breaks: "a volume whose filesystem hangs looks healthy", tests: monitor("TestHangingProbe"),
		},
		{
			name: "health/relists-too-rarely", file: "pkg/health/relist.go",
			old:    `if m.allConnected() {`,
			new:    `if len(m.sources) > 0 {`,
			breaks: "relists stay rare while an event source has failed", tests: monitor("TestTheRelistPeriods", "TestThePeriodIsLongerWhileAllSourcesAreUp"),
		},
		{
			name: "health/reads-counted-as-writes", file: "pkg/health/events/blockerrors.go",
			old:    `Write: !strings.HasPrefix(operation, "R")`,
			new:    `Write: strings.HasPrefix(operation, "R")`,
			breaks: "a failed read is reported as a failed write", tests: events("TestTraceLines"),
		},
		{
			name: "health/lost-trace-events-ignored", file: "pkg/health/events/blockerrors.go",
			old:    `case strings.HasPrefix(line, "CPU:") && strings.Contains(line, "[LOST "):`,
			new:    `case strings.HasPrefix(line, "CPU: ") && strings.Contains(line, "[LOST "):`,
			breaks: "I/O errors that the kernel dropped are not searched for", tests: events("TestTraceLines"),
		},
		{
			name: "health/file-overflow-ignored", file: "pkg/health/events/files.go",
			old: `		case mask&unix.IN_Q_OVERFLOW != 0:
			report(health.Event{Kind: health.Lost})
`,
			new: `		case mask&unix.IN_Q_OVERFLOW != 0:
`,
			breaks: "files that vanish in a storm of events are not noticed", tests: events("TestFilesLost"),
		},
		{
			name: "health/unmounted-pool-watched-on", file: "pkg/health/events/files.go",
			old:    `unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED`,
			new:    `unix.IN_MOVE_SELF`,
			breaks: "no event comes from a pool that was unmounted and mounted again", tests: events("TestFilesDirectoryGone"),
		},
		{
			name: "health/errors-of-another-filesystem", file: "pkg/health/events/filesystemerrors.go",
			old:    `event.Filesystem = [2]int32{first, second}`,
			new:    `event.Filesystem = [2]int32{second, first}`,
			breaks: "a filesystem's error is not matched with its volume", tests: events("TestFanotifyEvents"),
		},
		{
			name: "health/reason-in-both-views-twice", file: "pkg/health/record.go",
			old:    `if isWanted(entry) && !one.Has(entry.Reason) {`,
			new:    `if isWanted(entry) {`,
			breaks: "a reason that both views have is reported with both messages", tests: monitor("TestMerge.*"),
		},
		{
			name: "health/unstaged-is-unmounted", file: "pkg/node/probe/busy.go",
			old:    `return s.busy.isDevice() }`,
			new:    `return s.busy == nil && s.view.id == "" }`,
			breaks: "a volume whose unstaging failed is reported as unmounted by another program",
			tests:  in("test/driver/health", "TestHealthNamesTheMountNamespace.*"),
		},
		{
			name: "health/holder-not-named", file: "pkg/node/probe/busy.go",
			old:    `s.busy.holder, s.busy.searchedAt = now, time.Now()`,
			new:    `s.busy.searchedAt, now = time.Now(), holder.Process{}`,
			breaks: "the process that keeps a volume is not named", tests: in("test/driver/health", "TestHealthNamesTheProcess.*"),
		},
		{
			name: "health/lazy-detach-not-seen", file: "pkg/node/probe/devices.go",
			old:    `if device.AutoClear {`,
			new:    `if device.AutoClear && device.ReadOnly {`,
			breaks: "a device that goes with its last user is healthy", tests: in("test/driver/health", "TestHealthNamesTheProcessThatKeepsARawDevice"),
		},
		{
			name: "health/io-errors-not-kept", file: "pkg/node/probe/observations.go",
			old:    `o.volumeLocked(id).ioErrorAt = event.At`,
			new:    `_ = o.volumeLocked(id)`,
			breaks: "a volume with I/O errors looks healthy", tests: command{pkg: "./test/driver/health", run: "^TestHealthOfFailingImages$/^ext4_read_errors_that_pass$/^events$"},
		},
		{
			name: "health/read-only-filesystem-not-seen", file: "pkg/node/probe/filesystem.go",
			old:    `if s.point.HasSuperOption("emergency_ro") {`,
			new:    `if s.point.HasSuperOption("emergency_ro") && s.volume.IsReadOnly() {`,
			breaks: "an ext4 that stopped writing looks healthy", tests: in("test/driver/health", "TestHealthOfFilesystems"),
		},
		{
			name: "health/no-inodes-is-healthy", file: "pkg/node/probe/filesystem.go",
			old:    `usage.Inodes.Available <= 0`,
			new:    `usage.Inodes.Available < 0`,
			breaks: "a volume without free inodes looks healthy", tests: in("test/driver/health", "TestHealthOfFilesystems", "TestHealthOfMounts"),
		},
	}
}
