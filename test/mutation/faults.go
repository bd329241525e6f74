package main

// faultsMutants are defects of fault rules.
func faultsMutants() []mutant {
	unit := func(tests ...string) command { return in("pkg/faults", tests...) }
	socket := func(tests ...string) command { return in("test/driver/faults", tests...) }

	return []mutant{
		{
			name: "faults/calls-without-matching", file: "pkg/faults/injector.go",
			old: `		each.calls++

`,
			new:    ``,
			breaks: "a rule for the first calls has no hit", tests: socket("TestExamplesAct"),
		},
		{
			name: "faults/random-only-where-selected", file: "pkg/faults/active.go",
			old:    `rand.NewPCG(i.seed, name.Sum64())`,
			new:    `rand.NewPCG(1, name.Sum64())`,
			breaks: "the seed has no effect", tests: unit("TestTheSameSeedHasTheSameHits"),
		},
		{
			name: "faults/broken-file-clears", file: "pkg/faults/follow.go",
			old: `	if err == nil {
		err = i.replaceFile(file)
	}
`,
			new: `	if replaced := i.replaceFile(file); err == nil {
		err = replaced
	}
`,
			breaks: "a mistake in a changed file ends its rules", tests: unit("TestAFileIsFollowed"),
		},
		{
			name: "faults/response-is-shared", file: "pkg/faults/response.go",
			old:    `	altered := proto.Clone(response)`,
			new:    `	altered := response`,
			breaks: "a stale value is the altered one", tests: socket("TestResponsesArePatched"),
		},
		{
			name: "faults/drain-waits-for-holds", file: "pkg/driver/drain.go",
			old:    `	d.faults.Close()`,
			new:    `	_ = d.faults`,
			breaks: "calls that a rule holds keep the driver from ending", tests: socket("TestADrainReleasesHeldCalls"),
		},
		{
			name: "faults/failed-effect-reported-as-done", file: "pkg/faults/call.go",
			old:    `		if failure == nil && act.After != nil {`,
			new:    `		if act.After != nil {`,
			breaks: "a call that has failed by itself reports the rule's error", tests: socket("TestACallKeepsItsOwnError"),
		},
	}
}
