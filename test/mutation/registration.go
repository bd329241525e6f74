package main

// registrationMutants are defects of the registration with the kubelet.
func registrationMutants() []regression {
	tests := func(tests ...string) command { return in("internal/kubernetes/registration", tests...) }

	return []regression{
		{
			name: "registration/wrong-endpoint", in: "registration.service.GetInfo",
			old:    `Name: config.DriverName, Endpoint: config.Endpoint,`,
			new:    `Name: config.DriverName, Endpoint: config.socketPath(),`,
			breaks: "the kubelet calls the registration socket instead of the driver", tests: tests("TestKubeletRegistersTheDriver"),
		},
		{
			name: "registration/refusal-counts-as-success", in: "registration.service.NotifyRegistrationStatus",
			old:    `s.registrar.registered.Store(status.GetPluginRegistered())`,
			new:    `s.registrar.registered.Store(status != nil)`,
			breaks: "the driver reports that it is registered after a refusal", tests: tests("TestRefusalIsLoggedAndRetried"),
		},
		{
			name: "registration/not-tried-again", in: "registration.Registrar.keep",
			old:    `retry.Reset(refusals.take())`,
			new:    `refusals.take()`,
			breaks: "a refused driver stays unregistered", tests: tests("TestRefusalIsLoggedAndRetried"),
		},
		{
			name: "registration/removed-socket-stays-away", in: "registration.Registrar.keep",
			old:    `if r.listener.InPlace() {`,
			new:    `if r.listener != nil {`,
			breaks: "a socket that was removed does not come back",
			tests:  command{pkg: "./internal/kubernetes/registration", run: "^TestRemovedSocketIsMadeAgain$/^removed$"},
		},
		{
			name: "registration/registered-without-socket", in: "registration.Registrar.renew",
			old: `	r.registered.Store(false)
`,
			new:    ``,
			breaks: "the driver reports that it is registered with a socket that is gone",
			tests:  command{pkg: "./internal/kubernetes/registration", run: "^TestRemovedSocketIsMadeAgain$/^removed$"},
		},
		{
			name: "registration/relative-endpoint", in: "registration.Config.Check",
			old:    `if !filepath.IsAbs(c.Endpoint) {`,
			new:    `if c.Endpoint == "" {`,
			breaks: "the kubelet is given a path that it cannot open", tests: tests("TestConfigIsValidated"),
		},
		{
			name: "registration/pause-not-bounded", in: "registration.pauses.take",
			old:    `p.next = min(2*p.next, p.most)`,
			new:    `p.next = max(2*p.next, p.most)`,
			breaks: "the second attempt comes only after five minutes", tests: tests("TestRefusalIsLoggedAndRetried"),
		},
	}
}
