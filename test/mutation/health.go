package main

// healthMutants are defects of volume health and of the kernel's events.
func healthMutants() []regression {
	monitor := func(tests ...string) command { return in("internal/health", tests...) }
	events := func(tests ...string) command { return in("internal/health/events", tests...) }
	return []regression{
		{
			name: "health/older-observation-wins", in: "health.cache.isNewer",
			old:    `return at.After(old.ObservedAt)`,
			new:    `return !at.IsZero()`,
			breaks: "a slow probe overwrites what a later one has found", tests: monitor("TestSetKeepsNewerObservations", "TestLateObservationKeepsNewerRecords"),
		},
		{
			name: "health/forgotten-comes-back", in: "health.cache.isNewer",
			old:    `forgotten && !at.After(forgottenAt) {`,
			new:    `forgotten && at.After(forgottenAt) {`,
			breaks: "a deleted volume gets a condition again",
			tests:  monitor("TestForgetDropsEarlierObservations", "TestForgetDropsRunningProbes", "TestForgetDropsFutureObservations"),
		},
		{
			name: "health/repaired-stays-listed", in: "health.cache.put",
			old: `		c.abnormal.Delete(record.ID)
	}

	c.onChange(changes)`,
			new: `		_ = old
	}

	c.onChange(changes)`,
			breaks: "a repaired volume is still listed as unhealthy", tests: monitor("TestAbnormalIsInOrder"),
		},
		{
			name: "health/relist-forgets-nothing", in: "health.cache.relisted",
			old:    `changes = append(changes, c.drop(record)...)`,
			new:    `_ = record`,
			breaks: "volumes that are gone keep their conditions", tests: monitor("TestRelistProbesAllSubjects", "TestRelistKeepsNewerRecords"),
		},
		{
			name: "health/usage-lost", in: "health.cache.set",
			old:    `record.Usage = old.Usage`,
			new:    `_ = old.Usage`,
			breaks: "the last known usage is lost with each probe", tests: monitor("TestUsageStaysUntilThereIsANewerOne"),
		},
		{
			name: "health/since-renewed", in: "health.cache.put",
			old:    `record.Since = since(old, record)`,
			new:    `record.Since = since(nil, record)`,
			breaks: "a condition looks new with each probe", tests: monitor("TestSinceOutlivesRenewals"),
		},
		{
			name: "health/lost-events-ignored", in: "health.monitoredSource.notify",
			old:    `if event.Kind == Lost {`,
			new:    `if event.Kind == Lost && m.concern == nil {`,
			breaks: "what happened while events were lost is not probed", tests: monitor("TestLostEventsProbeAllVolumes"),
		},
		{
			name: "health/event-during-probe-dropped", in: "health.prober.finish",
			old: `	p.queue.Done(probe.subject.id)
`,
			new: `	p.queue.Done(probe.subject.id)
	if p.queue.Len() > 0 {
		again, _ := p.queue.Get()
		p.queue.Done(again)
	}
`,
			breaks: "a change during a probe is not seen", tests: monitor("TestEventDuringAProbeTriggersAnother"),
		},
		{
			name: "health/hanging-probe-not-reported", in: "health.prober.checkDuration",
			old: `	p.storeFailure(probe, probeTimedOut)
`,
			new:    ``,
			breaks: "a volume whose filesystem hangs looks healthy", tests: monitor("TestHangingProbeTimesOut"),
		},
		{
			name: "health/relists-too-rarely", in: "health.relistSchedule.untilNext",
			old:    `if s.allConnected() {`,
			new:    `if len(s.sources) > 0 {`,
			breaks: "relists stay rare while an event source has failed", tests: monitor("TestEventsLengthenTheRelistPeriod", "TestThePeriodIsLongerWhileAllSourcesAreUp"),
		},
		{
			name: "health/reads-counted-as-writes", in: "events.parseBlockError",
			old:    `Write: !strings.HasPrefix(operation, "R")`,
			new:    `Write: strings.HasPrefix(operation, "R")`,
			breaks: "a failed read is reported as a failed write", tests: events("TestTraceLinesAreParsed"),
		},
		{
			name: "health/lost-trace-events-ignored", in: "events.parseTraceLine",
			old:    `case strings.HasPrefix(line, "CPU:") && strings.Contains(line, "[LOST "):`,
			new:    `case strings.HasPrefix(line, "CPU: ") && strings.Contains(line, "[LOST "):`,
			breaks: "I/O errors that the kernel dropped are not searched for", tests: events("TestTraceLinesAreParsed"),
		},
		{
			name: "health/file-overflow-ignored", in: "inotify.Watcher.take",
			old: `		case mask&unix.IN_Q_OVERFLOW != 0:
			report(Event{Kind: Lost})
`,
			new: `		case mask&unix.IN_Q_OVERFLOW != 0:
`,
			breaks: "files that vanish in a storm of events are not noticed", tests: events("TestLostEventsOfFilesAreReported"),
		},
		{
			name: "health/unmounted-pool-watched-on", in: "inotify.directoryMoves",
			old:    `unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED`,
			new:    `unix.IN_MOVE_SELF`,
			breaks: "no event comes from a pool that was unmounted and mounted again", tests: events("TestTheWatchEndsWithItsDirectory"),
		},
		{
			name: "health/errors-of-another-filesystem", in: "events.filesystemError",
			old:    `event.Filesystem = [2]int32{first, second}`,
			new:    `event.Filesystem = [2]int32{second, first}`,
			breaks: "a filesystem's error is not matched with its volume", tests: events("TestFanotifyEventsAreParsed"),
		},
		{
			name: "health/reason-in-both-views-twice", in: "health.Merge",
			old:    `if isWanted(entry) && !one.Has(entry.Reason) {`,
			new:    `if isWanted(entry) {`,
			breaks: "a reason that both views have is reported with both messages", tests: monitor("TestMergeHasEachReasonOnce"),
		},
		{
			name: "health/unstaged-is-unmounted", in: "probe.busyProbe.isUnstaged",
			old:    `return b.held.isDevice() }`,
			new:    `return b.held == nil && b.id == "" }`,
			breaks: "a volume whose unstaging failed is reported as unmounted by another program",
			tests:  in("test/driver/health", "TestHealthNamesTheMountNamespaceThatKeepsVolumes"),
		},
		{
			name: "health/holder-not-named", in: "probe.busyProbe.findHolder",
			old:    `b.held.holder, b.held.searchedAt = now, time.Now()`,
			new:    `b.held.searchedAt, now = time.Now(), holder.Process{}`,
			breaks: "the process that keeps a volume is not named", tests: in("test/driver/health", "TestHealthNamesTheProcessThatKeepsAMount", "TestHealthNamesTheProcessThatKeepsARawDevice"),
		},
		{
			name: "health/lazy-detach-not-seen", in: "probe.probeState.probeRawDevice",
			old:    `if found.AutoClear {`,
			new:    `if found.AutoClear && device.ReadOnly {`,
			breaks: "a device that goes with its last user is healthy", tests: in("test/driver/health", "TestHealthNamesTheProcessThatKeepsARawDevice"),
		},
		{
			name: "health/io-errors-not-kept", in: "probe.Observations.recordIOError",
			old:    `o.volumeLocked(id).ioErrorAt = event.At`,
			new:    `_ = o.volumeLocked(id)`,
			breaks: "a volume with I/O errors looks healthy", tests: command{pkg: "./test/driver/health", run: "^TestFailingImagesAreReported$/^ext4_read_errors_that_pass$/^events$"},
		},
		{
			name: "health/read-only-filesystem-not-seen", in: "probe.probeState.probeWritable",
			old:    `if s.point.HasSuperOption("emergency_ro") {`,
			new:    `if s.point.HasSuperOption("emergency_ro") && s.volume.IsReadOnly() {`,
			breaks: "an ext4 that stopped writing looks healthy", tests: in("test/driver/health", "TestUnhealthyFilesystemsAreReported"),
		},
		{
			name: "health/no-inodes-is-healthy", in: "probe.inodesExhausted",
			old:    `usage.Inodes.Available <= 0`,
			new:    `usage.Inodes.Available < 0`,
			breaks: "a volume without free inodes looks healthy", tests: in("test/driver/health", "TestUnhealthyFilesystemsAreReported", "TestLostMountsAreReported"),
		},
	}
}
