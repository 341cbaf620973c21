package tune

import "io/fs"

// Checks are all of them, in the order of a report.
func Checks() []Check {
	return []Check{
		somaxconn(), synBacklog(), syncookies(), abortOnOverflow(), migrateReq(),
		portRange(), reservedPorts(), twReuse(), finTimeout(), maxTwBuckets(),
		tcpRmem(), tcpWmem(), tcpMem(), rmemMax(), wmemMax(), moderateRcvbuf(), notsentLowat(), maxOrphans(),
		congestion(), defaultQdisc(), slowStartAfterIdle(), timestamps(), sack(), windowScaling(), keepalive(), retries2(), fastopen(), mtuProbing(),
		netdevBacklog(), netdevBudget(), netdevBudgetUsecs(), busyPoll(), busyRead(), classQueues(), cpuGovernor(),
		nicChannels(), nicRings(), nicCoalesce(), nicOffloads(), receiveSteering(), flowEntries(), transmitSteering(), irqAffinity(),
		fileMax(), nrOpen(), nofile(),
		swappiness(), hugePages(),
		conntrackMax(), conntrackBuckets(), conntrackEstablished(), notrack(),
		cgroupMemory(), cgroupCPU(), cgroupPids(),
		twRecycle(), tcpLowLatency(), tcpFack(), advWinScale(), schedGranularity(),
	}
}

// A missingError is for what is not there, in words.
type missingError struct{ text string }

func (e *missingError) Error() string        { return e.text }
func (e *missingError) Is(target error) bool { return target == fs.ErrNotExist }
