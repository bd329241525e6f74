package main

// registrationMutants are defects of the registration with the kubelet.
func registrationMutants() []mutant {
	tests := func(tests ...string) command { return in("internal/kubernetes/registration", tests...) }

	return []mutant{
		{
			name: "registration/wrong-endpoint", file: "internal/kubernetes/registration/service.go",
			old:    `Name: config.DriverName, Endpoint: config.Endpoint,`,
			new:    `Name: config.DriverName, Endpoint: config.socketPath(),`,
			breaks: "the kubelet calls the registration socket instead of the driver", tests: tests("TestKubeletIsTold"),
		},
		{
			name: "registration/refusal-counts-as-success", file: "internal/kubernetes/registration/service.go",
			old:    `s.registrar.registered.Store(status.GetPluginRegistered())`,
			new:    `s.registrar.registered.Store(status != nil)`,
			breaks: "the driver reports that it is registered after a refusal", tests: tests("TestRefusalIsToldAndTriedAgain"),
		},
		{
			name: "registration/not-tried-again", file: "internal/kubernetes/registration/keep.go",
			old:    `retry.Reset(refusals.take())`,
			new:    `refusals.take()`,
			breaks: "a refused driver stays unregistered", tests: tests("TestRefusalIsToldAndTriedAgain"),
		},
		{
			name: "registration/removed-socket-stays-away", file: "internal/kubernetes/registration/keep.go",
			old:    `if r.listener.InPlace() {`,
			new:    `if r.listener != nil {`,
			breaks: "a socket that was removed does not come back",
			tests:  command{pkg: "./internal/kubernetes/registration", run: "^TestSocketComesBack$/^removed$"},
		},
		{
			name: "registration/registered-without-socket", file: "internal/kubernetes/registration/keep.go",
			old: `	r.registered.Store(false)
`,
			new:    ``,
			breaks: "the driver reports that it is registered with a socket that is gone",
			tests:  command{pkg: "./internal/kubernetes/registration", run: "^TestSocketComesBack$/^removed$"},
		},
		{
			name: "registration/relative-endpoint", file: "internal/kubernetes/registration/registrar.go",
			old:    `if !filepath.IsAbs(c.Endpoint) {`,
			new:    `if c.Endpoint == "" {`,
			breaks: "the kubelet is given a path that it cannot open", tests: tests("TestConfig"),
		},
		{
			name: "registration/pause-not-bounded", file: "internal/kubernetes/registration/keep.go",
			old:    `p.next = min(2*p.next, p.most)`,
			new:    `p.next = max(2*p.next, p.most)`,
			breaks: "the second attempt comes only after five minutes", tests: tests("TestRefusalIsToldAndTriedAgain", "Test.*Pause.*"),
		},
	}
}
