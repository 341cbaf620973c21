package chaos

// rows are the table, numbered as in docs/chaos.md.
var rows = []row{
	{1, "kill -9 of the gateway", false, false, killedGateway},
	{2, "kill -9 of a single NATS server", true, false, killedNATS},
	{3, "power loss under NATS, sync always", false, true, func(c *trial) { powerLoss(c, true) }},
	{31, "power loss under NATS, default sync", false, true, func(c *trial) { powerLoss(c, false) }},
	{4, "gateway and NATS: latency, resets, 64 KB/s, silence, one direction", false, false, badLink},
	{5, "clients: resets in frames, dropped packets, stalls, one byte at a time", false, true, badClients},
	{6, "restarts of two gateways one after the other, sockets kept", false, false, rollingRestart},
	{7, "all clients cut at once, each resumes", false, false, reconnectStorm},
	{8, "one subscriber in five stops reading", false, false, slowReaders},
	{9, "disk full under the log", true, true, fullDisk},
	{91, "disk mounted read-only under the log", false, true, readOnlyDisk},
	{10, "log's disk full, log pipe blocked", false, true, blockedLogs},
	{11, "clock jumps: ±1 h, ±24 h, 10× speed", false, false, clockJumps},
	{12, "descriptors used up", false, false, noDescriptors},
	{13, "memory limit under growing load", false, false, memoryLimit},
	{14, "certificates replaced, a broken one among them", false, false, certificates},
	{15, "configuration reloaded, invalid in between", false, false, reloads},
	{16, "backends that die, hang and send garbage", false, false, backends},
	{17, "every publication twice, during kills", false, false, duplicates},
	{18, "log deleted, purged, trimmed; ids from the future and garbage", true, false, resumeIDs},
	{19, "rolling upgrade between two versions", false, false, mixedVersions},
	{20, "kill -9 of the node of three that leads the log", false, false, func(c *trial) { killedMember(c, func(leader int) int { return leader }) }},
	{21, "kill -9 of a node of three that follows the log", false, false, func(c *trial) {
		killedMember(c, func(leader int) int { return (leader + 1 + c.rng.IntN(2)) % 3 })
	}},
	{22, "kill -9 of any node of three", false, false, func(c *trial) { killedMember(c, func(int) int { return c.rng.IntN(3) }) }},
	{23, "two sites: link cut in one direction, leading site killed, both switched back", true, false, func(c *trial) { twoSites(c, 1) }},
	{24, "each of three nodes replaced, one after the other", false, false, replacedMembers},
	{231, "the same with three NATS servers at each site", false, false, func(c *trial) { twoSites(c, 3) }},
}
