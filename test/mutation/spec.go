package main

const (
	errorTables = "TestErrorTables"
	conformance = "test/conformance"
)

// specMutants break a requirement each; the name has the id of its row in docs/spec.md.
func specMutants() []regression {
	return []regression{
		{
			name: "spec/NPVE-4-unknown-volume", in: "node.lifecycle.stageAndPublish",
			old: `errors.Join(l.checkExists(ctx, wanted.volumeID), err)`, new: `errors.Join(nil, err)`,
			breaks: "NodePublishVolume of an unknown volume is FAILED_PRECONDITION", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NPVE-5-published-otherwise", in: "node.checkSamePublication",
			old: `differences := v.Differences(existing, wanted)`, new: `differences := v.Differences(existing, existing)`,
			breaks: "a publication with another capability is answered with success", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NPVE-6-exceeds-capabilities", in: "node.checkPublishable",
			old: `if err := checkCapability(config, v, wanted.Capability); err != nil {
		return rpc.Errorf(codes.FailedPrecondition,`,
			new: `if err := checkCapability(config, v, wanted.Capability); err != nil {
		return rpc.Errorf(codes.InvalidArgument,`,
			breaks: "a capability that the volume does not have has another code", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NPVE-7-staging-path-missing", in: "node.Common.parsePublish",
			old:    `rpc.Errorf(codes.FailedPrecondition, "staging_target_path`,
			new:    `rpc.Errorf(codes.InvalidArgument, "staging_target_path`,
			breaks: "a missing staging path has another code", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NSVE-6-exceeds-capabilities", in: "node.checkCapability",
			old: `return v.Parameters.CheckFSType(wanted)`, new: `return nil`,
			breaks: "a volume is staged as another filesystem than it has", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NEVE-1-exceeds-capabilities", in: "node.checkHas",
			old: `return checkCapability(config, v, *wanted)`, new: `return nil`,
			breaks: "NodeExpandVolume takes a capability that the volume does not have", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NEVE-4-limit-below-size", in: "device.Devices.Resize",
			old: `limit > 0 && size > limit {`, new: `limit > 0 && size > limit+size {`,
			breaks: "NodeExpandVolume ignores limit_bytes", tests: in(conformance, errorTables),
		},
		{
			name: "spec/NEV-9-relative-staging-path", in: "node.checkUse",
			old: `, rpc.CheckAbsolute("staging_target_path", stagingPath))`, new: `)`,
			breaks: "a relative staging_target_path is accepted", tests: in(conformance, errorTables),
		},
		{
			name: "spec/CV-38-empty-range", in: "rpc.CheckCapacityRange",
			old: `case required == 0 && limit == 0:`, new: `case required == 0 && limit < 0:`,
			breaks: "an empty capacity_range is accepted", tests: in(conformance, errorTables),
		},
		{
			name: "spec/CV-54-empty-requirement", in: "record.CheckTopologyRequirement",
			old:    `case len(given.GetRequisite()) == 0 && len(given.GetPreferred()) == 0:`,
			new:    `case len(given.GetRequisite()) == 0 && len(given.GetPreferred()) > 9:`,
			breaks: "an empty topology requirement is accepted", tests: in(conformance, errorTables),
		},
		{
			name: "spec/CV-69-preferred-not-requisite", in: "record.CheckTopologyRequirement",
			old: `if len(given.GetRequisite()) > 0 && !slices`, new: `if len(given.GetRequisite()) > 9 && !slices`,
			breaks: "a contradictory topology requirement is accepted", tests: in("test/driver/create", "TestVolumesAreMadeWhereTheTopologyAllows"),
		},
		{
			name: "spec/SL-1-long-map", in: "controller.checkContext",
			old: `if bytes > maxMapBytes {`, new: `if bytes > 2*maxMapBytes {`,
			breaks: "a volume gets a volume_context that no call takes", tests: in(conformance, errorTables),
		},
		{
			name: "spec/SL-1-long-string", in: "controller.notConfirmed",
			old: `shorten.Text(message, shorten.MaxBytes)`, new: `shorten.Text(message, 2*shorten.MaxBytes)`,
			breaks: "a message is longer than the spec allows", tests: in("test/driver/requests", "TestIncompleteCapabilitiesAreRefused"),
		},
		{
			name: "spec/GPC-2-other-set", in: "capability.Set.Plugin",
			old: `(topology || name != VolumeAccessibilityConstraints && name != SnapshotConstraints)`, new: `topology`,
			breaks: "a process advertises other capabilities than the plugin has", tests: in("pkg/identity", "TestGetPluginCapabilitiesFollowsTheConfig"),
		},
		{
			name: "spec/CVGS-2-write-order", in: "copies.taking.planTaking",
			old: `if len(t.copies) > 1 || !each.copy.PointInTime() {`, new: `if len(t.copies) > 100 || !each.copy.PointInTime() {`,
			breaks: "a group snapshot breaks the order of writes", tests: in("test/driver/copies", "TestGroupHasAllMembers"),
		},
		{
			name: "spec/TP-2-failed-copy", in: "controller.Service.ensureSnapshot",
			old: `case existing.IsVisible():`, new: `case existing.IsVisible() && existing.Name == "":`,
			breaks: "an acknowledged snapshot gets later content", tests: in("test/driver/copies", "TestAFailedSnapshotStaysFailed"),
		},
		{
			name: "spec/CSIEND-1-variable", in: "main.envNames",
			old: `if flag == "endpoint" {`, new: `if flag == "endpoints" {`,
			breaks: "CSI_ENDPOINT is ignored", tests: in("cmd/touchstone", "TestTheDriversEndpointVariableWins"),
		},
		{
			name: "spec/F-2-beside-the-socket", in: "node.OwnStagingDir",
			old: `filepath.Join(kubeletDir, "plugins", "staging."+driver)`, new: `filepath.Join(kubeletDir, "plugins", driver, "staging")`,
			breaks: "a directory is made beside the socket", tests: in(conformance, "TestSocketDirectoryStaysClean"),
		},
		{
			name: "spec/GC-11-maximum", in: "controller.Service.GetCapacity",
			old: `largest = min(largest, s.config.MaxVolumeBytes/RoundBytes*RoundBytes)`, new: `largest = min(largest, s.config.MaxVolumeBytes)`,
			breaks: "the largest size does not work", tests: in(conformance, "TestMaximumVolumeSizeWorks"),
		},
		{
			name: "spec/GC-3-thick", in: "controller.Service.GetCapacity",
			old: `parameters.Provisioning == volume.Thick`, new: `parameters.Provisioning == ""`,
			breaks: "overcommitment counts for thick volumes", tests: in(conformance, "TestCapacityForThickVolumes"),
		},
		{
			name: "spec/CVE-6-other-capabilities", in: "controller.checkSameVolume",
			old: `case differences != "":`, new: `case differences == "never":`,
			breaks: "CreateVolume returns a volume with other capabilities", tests: in(conformance, errorTables),
		},
		{
			name: "spec/CPVE-6-other-readonly", in: "record.Volume.CheckSame",
			old: `volume.Use{Capability: wanted.Capability, ReadOnly: wanted.ReadOnly}`, new: `volume.Use{Capability: wanted.Capability, ReadOnly: a.ReadOnly}`,
			breaks: "an attachment with another readonly flag is answered with success", tests: in(conformance, errorTables),
		},
		{
			name: "spec/CAP-single-writer", in: "record.Volume.CheckAttachable",
			old: `(other.singleWriter() || wanted.singleWriter())`, new: `(other.singleWriter() && !wanted.singleWriter())`,
			breaks: "two nodes write a volume of MULTI_NODE_SINGLE_WRITER", tests: in("test/driver/publishing", "TestEachAccessModeAllowsItsPublications"),
		},
		{
			name: "spec/CV-76-keys-differ-by-case", in: "driver.Config.checkTopology",
			old: `names[strings.ToLower(key)] = key`, new: `names[key] = key`,
			breaks: "topology keys that differ only by case are advertised", tests: in("internal/driver", "TestNamesFollowTheSpec"),
		},
	}
}
