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
			breaks: "a rule for the first calls has no hit", tests: socket("TestExamplesAct"),
		},
		{
			name: "faults/random-only-where-selected", in: "faults.Injector.activate",
			old:    `rand.NewPCG(i.seed, name.Sum64())`,
			new:    `rand.NewPCG(1, name.Sum64())`,
			breaks: "the seed has no effect", tests: unit("TestTheSameSeedHasTheSameHits"),
		},
		{
			name: "faults/broken-file-clears", in: "faults.Injector.Load",
			old: `	if err == nil {
		err = i.replaceFile(file, text)
	}
`,
			new: `	if replaced := i.replaceFile(file, text); err == nil {
		err = replaced
	}
`,
			breaks: "a mistake in a changed file ends its rules", tests: unit("TestAFileIsFollowed"),
		},
		{
			name: "faults/response-is-shared", in: "faults.Injector.alter",
			old:    `	altered := proto.Clone(response)`,
			new:    `	altered := response`,
			breaks: "a stale value is the altered one", tests: socket("TestResponsesArePatched"),
		},
		{
			name: "faults/drain-waits-for-holds", in: "driver.Driver.drain",
			old:    `	d.lab.drain()`,
			new:    `	_ = d.lab`,
			breaks: "calls that a rule holds keep the driver from ending", tests: socket("TestADrainReleasesHeldCalls"),
		},
		{
			name: "faults/failed-effect-reported-as-done", in: "faults.Injector.after",
			old:    `		if failure == nil && act.After != nil {`,
			new:    `		if act.After != nil {`,
			breaks: "a call that has failed by itself reports the rule's error", tests: socket("TestACallKeepsItsOwnError"),
		},
	}
}
