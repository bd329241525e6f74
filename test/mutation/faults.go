package main

// faultsMutants are defects of fault rules.
func faultsMutants() []regression {
	unit := func(tests ...string) command { return in("internal/lab/faults", tests...) }
	socket := func(tests ...string) command { return in("test/driver/faults", tests...) }

	return []regression{
		{
			name: "faults/calls-without-matching", in: "faults.Injector.decide",
			old: `		each.calls++

`,
			new:    ``,
			breaks: "a rule for the first calls has no hit", tests: socket("TestExamplesTakeEffect"),
		},
		{
			name: "faults/random-only-where-selected", in: "faults.ruleSet.activate",
			old:    `rand.NewPCG(s.seed, name.Sum64())`,
			new:    `rand.NewPCG(1, name.Sum64())`,
			breaks: "the seed has no effect", tests: unit("TestTheSameSeedHasTheSameHits"),
		},
		{
			name: "faults/broken-file-clears", in: "faults.Injector.Load",
			old: `	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	if err := i.replaceFile(file, text); err != nil {
`,
			new: `	if replaced := i.replaceFile(file, text); err == nil {
		err = replaced
	}

	if err != nil {
`,
			breaks: "a mistake in a changed file ends its rules", tests: unit("TestFileChangesAreApplied"),
		},
		{
			name: "faults/previous-is-always-the-first", in: "faults.Injector.remember",
			old: `	i.previous.Put(key, response)`,
			new: `	if previous == nil {
		i.previous.Put(key, response)
	}`,
			breaks: "a stale value is the oldest one", tests: socket("TestResponsesArePatched"),
		},
		{
			name: "faults/patches-without-dry-run", in: "faults.Act.checkPatch",
			old: `		return jq.ToMessage(output, newMessage(method.Output()).Interface())`,
			new: `		_ = output

		return nil`,
			breaks: "a patch whose output is no response is refused at the first call only", tests: unit("TestMistakesNameTheirLine"),
		},
		{
			name: "jq/misspelled-fields", in: "jq.checker.get",
			old:    `			return c.fail("%s has no field %s", of.message.Name(), name)`,
			new:    `			return nil`,
			breaks: "a rule with a misspelled field has no hit", tests: in("internal/lab/jq", "TestMistakesAreFound"),
		},
		{
			name: "jq/absent-defaults", in: "jq.fromMessage",
			old:    `!field.HasPresence() || message.Has(field)`,
			new:    `message.Has(field)`,
			breaks: "an empty field is null", tests: in("internal/lab/jq", "TestPredicatesMatchRequests"),
		},
		{
			name: "jq/limit-is-no-mistake", in: "jq.Program.run",
			old:    `				err = context.Cause(ctx)`,
			new:    `				err = ctx.Err()`,
			breaks: "a program without an end is not refused at the start", tests: in("internal/lab/jq", "TestProgramsEndWithTheirContext"),
		},
		{
			name: "faults/drain-waits-for-holds", in: "driver.Driver.drain",
			old:    `		drain()`,
			new:    `		_ = drain`,
			breaks: "calls that a rule holds keep the driver from ending", tests: socket("TestADrainReleasesHeldCalls"),
		},
		{
			name: "faults/failed-effect-reported-as-done", in: "faults.effects.after",
			old:    `		if failure == nil && act.After != nil {`,
			new:    `		if act.After != nil {`,
			breaks: "a call that has failed by itself reports the rule's error", tests: socket("TestACallKeepsItsOwnError"),
		},
	}
}
