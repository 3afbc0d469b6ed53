import type { AgentSources } from "../../src/api/index.ts";
import { FrameCounts } from "../../src/engine/index.ts";
import { FrameStatus, Op } from "../../src/engine/protocol/index.ts";
import { Health } from "../../src/observability/index.ts";
import { ManualClock } from "../support/index.ts";

const STORE: AgentSources["store"] = {
  ...{ ramBlocks: 5, ramBytes: 500, gpuBlocks: 3, gpuBytes: 300 },
  ...{ tableNodes: 8, tableNodesMax: 100, aliases: 0, sessions: 6 },
  ...{ arenaBytes: 4096, readyBytes: 2048, slotsUsed: 5, slotsQuarantined: 1 },
  classes: [{ slotBytes: 128, extents: 1, slots: 15, used: 5 }],
  checks: {
    damaged: { report: 41, write: 42, scrub: 43, file: 44, read: 0, peer: 45, gpu: 46 },
    ...{ falseReports: 47, skippedReports: 48, scrubbedBlocks: 49, scrubbedBytes: 4900 },
    ...{ unknownReports: 481, plantedBlocks: 482 },
  },
  stats: {
    ...{ acquireHitsSsd: 0, acquireHitsPeer: 0, quarantinedSlots: 0, pulledBlocks: 0 },
    ...{ pulledBytes: 0, peerCorruptBlocks: 0, lentBlocks: 0, lentBytes: 0 },
    ...{ matchBlocks: 50, acquireHits: 40, acquireMisses: 4, reservedBlocks: 30 },
    ...{ presentBlocks: 3, fullBlocks: 2, committedBlocks: 25, committedBytes: 2500 },
    ...{ abortedBlocks: 6, corruptBlocks: 1, evictedBlocks: 7, evictedBytes: 700 },
    evictionRuns: 9,
  },
  ssd: {
    ...{ blocks: 2, bytes: 200, usedBytes: 16_384, capacityBytes: 2 ** 20, queuedBlocks: 1 },
    ...{ queuedBytes: 64, reading: 3, quarantinedFiles: 1, method: "threads", direct: true },
    ...{ registered: false, writesStopped: null, readsStopped: null },
    stats: {
      ...{ writtenBlocks: 21, writtenBytes: 2100, readBlocks: 22, readBytes: 2200 },
      ...{ evictedBlocks: 23, evictedBytes: 2300, expiredBlocks: 24, corruptBlocks: 25 },
      ...{ ramDamagedFiles: 33, skippedBlocks: 26, readErrors: 27, writeErrors: 28 },
      ...{ sharedReads: 29, lateBlocks: 30, scrubbedBlocks: 31, scrubbedBytes: 3100 },
      purgedBlocks: 32,
    },
  },
};

const CONTROL: AgentSources["control"] = {
  holds: {
    pin: { holds: 2, blocks: 3, bytes: 4 },
    retain: { holds: 0, blocks: 0, bytes: 0 },
    lease: { holds: 0, blocks: 0, bytes: 0 },
    ...{ relieved: 5, expired: 6, lost: 7 },
  },
  figures: {
    ...{ capacityBytes: 100, hostUsedBytes: 8, hostBudgetBytes: 9 },
    ...{ ownerUsedBytes: 0, ownerBudgetBytes: 0 },
  },
  stats: {
    commands: { "Cache/ok": 10, "Cache/partial": 11 },
    refused: { malformed: 12 },
    ...{ duplicates: 13, running: 14, auditDropped: 15, auditFailure: null },
  },
  ledger: { pending: 16, dropped: 17, failing: null, setAside: null },
};

const BUS: AgentSources["bus"] = {
  state: {
    ...{ status: "connected", server: "nats://broker:4222", why: null, reconnects: 18 },
    ...{ sentMessages: 19, receivedMessages: 20, ignoredMessages: 4, droppedMessages: 21 },
    ...{ queuedMessages: 22, queuedBytes: 0, doubtfulMessages: 0, handlerFaults: 0 },
    refusedSubjects: [],
  },
  answers: {
    ...{ received: 0, answered: 23, unasked: 24, lost: 25, overflowed: 26, limited: 2 },
    waiting: 0,
  },
  stream: { name: "S", status: "consuming", why: null, handled: 27, givenUp: 28 },
  workers: null,
};

/** Sources of an agent's numbers, most of which differ from each other. */
export function agentSources(clock = new ManualClock()): AgentSources {
  const frames = new FrameCounts();
  frames.add(Op.acquire, FrameStatus.ok);
  frames.add(Op.acquire, FrameStatus.ok);
  frames.add(Op.hello, FrameStatus.version);
  frames.add(200, FrameStatus.unknownOp);
  return {
    ...{ version: "1.2.3", commit: "abc", clock, startedMs: clock.monotonicMs() },
    health: new Health({ clock, log: { log: () => undefined } }),
    lag: {
      longestSeconds: () => 0.25,
      longestTurnSeconds: () => 0.006,
      longestTurnCpuSeconds: () => 0.004,
      longTurns: 2,
    },
    logger: { dropped: 3 },
    refusals: new Map(),
    store: STORE,
    region: { pageBytes: 4096, lockedBytes: 1024 },
    engine: {
      ...{ connections: 11, held: () => ({ held: 6, quarantined: 1 }) },
      stats: {
        ...{ connected: 12, refusedPeers: 2, cutOff: 1, quarantines: 4, faults: 0 },
        ...{ gpuStoredBytes: 61, gpuLoadedBytes: 62, gpuFailures: 63, gpuLeakedSlots: 64 },
      },
    },
    frames,
    engines: {
      ...{ lookups: { size: 7 }, announcements: { size: 9 } },
      book: {
        stats: {
          ...{ bytes: 8192, claimedBlocks: 10, takenBlocks: 5, unusedBlocks: 3, refusedBlocks: 2 },
        },
      },
    },
    control: CONTROL,
    bus: BUS,
    peers: null,
    publishing: null,
    devices: { gpu: null, rdma: null, direct: [] },
  };
}
