package main

// stateMutants are defects of the durable state.
func stateMutants() []regression {
	// All but TestStoreMatchesAModel, which takes minutes to shrink what fails.
	tests := wholePackage("pkg/state")

	return []regression{
		{
			name: "state/journal-not-synced", in: "state.journal.append",
			old:    `err := j.file.Sync()`,
			new:    `err := error(nil)`,
			breaks: "an acknowledged transaction is lost in a power failure",
			tests:  in("pkg/state", "TestReadChangesAreDurable", "TestConcurrentUpdatesShareASync", "TestCrashAtEveryStep"),
		},
		{
			name: "state/new-journal-not-synced", in: "state.journal.fill",
			old: `	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("preallocate`,
			new: `	if err := error(nil); err != nil {
		return fmt.Errorf("preallocate`,
			breaks: "a power failure after a compaction loses the changes that the new journal took over", tests: tests,
		},
		{
			name: "state/new-journal-name-not-synced", in: "state.journal.install",
			old:    `err = files.SyncDir(dir)`,
			new:    `err = nil`,
			breaks: "changes go to a journal whose name a power failure takes away", tests: tests,
		},
		{
			name: "state/changes-during-compaction-not-copied", in: "state.committer.complete",
			old:    `err := next.copyFrom(c.journal, from, c.journal.end)`,
			new:    `err := next.copyFrom(c.journal, from, from)`,
			breaks: "changes that were made while a compaction ran are lost", tests: tests,
		},
		{
			name: "state/checksum-of-line-not-compared", in: "state.checkLine",
			old:    `return errChecksum`,
			new:    `return nil`,
			breaks: "a flipped bit becomes a record", tests: tests,
		},
		{
			name: "state/missing-records-accepted", in: "state.loader.apply",
			old:    `case l.base.records < l.base.expected || p.kind == recordLine:`,
			new:    `case p.kind == recordLine:`,
			breaks: "a journal whose base lacks a record is taken for a whole one", tests: tests,
		},
		{
			name: "state/sequence-gap-accepted", in: "state.loader.applyGood",
			old:    `case p.Sequence != previous+1:`,
			new:    `case p.Sequence <= previous:`,
			breaks: "a journal with a missing change is taken for a whole one", tests: tests,
		},
		{
			name: "state/half-a-transaction-applied", in: "state.loader.applyGood",
			old:    `if p.More {`,
			new:    `if p.More && p.Collection == "" {`,
			breaks: "a part of a transaction that was interrupted survives a power failure",
			tests:  in("pkg/state", "TestCrashAtEveryStep"),
		},
		{
			name: "state/torn-tail-not-cut", in: "state.committer.dropTorn",
			old:    `err := c.journal.wipe()`,
			new:    `err := error(nil)`,
			breaks: "a remnant behind the last line is mistaken for a later change", tests: tests,
		},
		{
			name: "state/lock-is-shared", in: "state.lockForWriting",
			old:    `err := lock(dir, file, unix.LOCK_EX)`,
			new:    `err := lock(dir, file, unix.LOCK_SH)`,
			breaks: "two drivers write one state directory", tests: tests,
		},
		{
			name: "state/visible-before-durable", in: "state.committer.flush",
			old: `	if err := c.journal.append(b.lines, b.sync); err != nil {
`,
			new: `	for _, each := range publish {
		each()
	}

	if err := c.journal.append(b.lines, b.sync); err != nil {
`,
			breaks: "a reader acts on a record that a failure takes back", tests: tests,
		},
		{
			name: "state/unsynced-change-taken-for-durable", in: "state.writer.take",
			old:    `w.pending.first = b.first`,
			new:    `w.pending.first = 0`,
			breaks: "a power failure that loses an unsynced change is refused as damage",
			tests:  in("pkg/state", "TestCrashAtEveryStep"),
		},
		{
			name: "state/failed-write-acknowledged", in: "state.committer.fail",
			old:    `b.err = err`,
			new:    `_ = err`,
			breaks: "a change that was not written is answered with success", tests: tests,
		},
		{
			name: "state/aborted-transaction-not-reverted", in: "state.writer.apply",
			old:    `if !accepted {`,
			new:    `if !accepted && tx.failed != nil {`,
			breaks: "what a refused call changed stays in the latest state", tests: tests,
		},
		{
			name: "state/deletion-not-journaled", in: "state.View.Delete",
			old:    `record: []byte("null")}`,
			new:    `record: []byte("{}")}`,
			breaks: "a deleted record is back after a restart", tests: tests,
		},
		{
			name: "state/index-keeps-removed-key", in: "state.table.remove",
			old:    `each.forget(each.value(old))`,
			new:    `each.forget("")`,
			breaks: "the name of a deleted volume stays taken", tests: tests,
		},
		{
			name: "state/lazy-change-never-flushed", in: "state.committer.flushLater",
			old:    `_ = c.await(b)`,
			new:    `_ = b`,
			breaks: "a lazy change is not written until the next one", tests: tests,
		},
		{
			name: "state/another-pool-compared", in: "audit.comparison.compareIdentity",
			old:    `if known == "" || found == known {`,
			new:    `if known == "" || found != "" {`,
			breaks: "repair removes what is empty from a pool of another driver",
			tests:  in("cmd/touchstone", "TestAnotherPoolIsReported"),
		},
		{
			name: "state/pool-not-forgotten", in: "audit.ForgetPool",
			old:    `return identities.In(tx).Delete(name)`,
			new:    `return nil`,
			breaks: "a pool that is lost permanently is refused permanently", tests: in("cmd/touchstone", "TestForgetPoolAcceptsANewDirectory"),
		},
		{
			name: "state/unknown-phase-accepted", in: "record.checkVolume",
			old: `	case v.Phase != PhaseReady && !v.Phase.IsUnfinished():
		return refuse("phase", v.Phase)
	case v.CapacityBytes < 0:`,
			new:    `	case v.CapacityBytes < 0:`,
			breaks: "a volume in a phase of a newer release is served, or removed", tests: in("cmd/touchstone", "TestUnknownValuesRemoveNothing"),
		},
		{
			name: "state/members-of-other-groups-removed", in: "record.Register",
			old:    `	store.AddCheck(c.checkMembers)`,
			new:    `	_ = c.checkMembers`,
			breaks: "the removal of an unfinished group removes snapshots that are ready", tests: in("internal/driver/audit", "TestContradictionsAreFound"),
		},
		{
			name: "state/repair-without-backup", in: "state.Store.Repair",
			old:    `backup, err := backUp(seen.path)`,
			new:    `backup, err := "", error(nil)`,
			breaks: "a repair destroys the files that it could not read", tests: tests,
		},
		{
			name: "state/space-not-awaited", in: "state.committer.fail",
			old:    `c.background.Go(c.awaitSpace)`,
			new:    `_ = c.awaitSpace`,
			breaks: "a state that had no space once accepts no change before a restart",
			tests:  in("pkg/state", "TestAcceptsChangesWhenThereIsSpaceAgain"),
		},
	}
}
