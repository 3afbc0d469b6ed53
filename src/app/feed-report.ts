import type { StatusReport } from "../api/index.ts";
import { DROP_REASONS, type FeedCounts } from "../events/index.ts";
import type { FeedSnapshot } from "../observability/index.ts";
import type { FeedRoom } from "./feed-room.ts";

/** What status and metrics show of what others are told. */
export function feedStatus(room: FeedRoom | null): StatusReport["feed"] {
  if (room === null) return null;
  const snapshot = feedSnapshot(room);
  const [device, host, disk] = room.heldBlocks;
  const streams = room.ranks.flatMap(({ stream }) => (stream === null ? [] : [stream]));
  const worst = streams.find(({ status }) => status !== "publishing") ?? streams[0] ?? null;
  return {
    mode: room.mode,
    cluster: room.cluster,
    ranks: room.ranks.length,
    changes: snapshot.changes,
    device_blocks: device,
    host_blocks: host,
    disk_blocks: disk,
    ring_blocks: snapshot.ringBlocks,
    sent: snapshot.messages.sent,
    unsent: snapshot.messages.unsent,
    snapshots: snapshot.snapshots,
    engine: engineOf(room),
    stream:
      worst === null
        ? null
        : {
            status: worst.status,
            why: worst.why,
            behind: snapshot.streamBehind,
            stored_snapshots: snapshot.storedSnapshots,
          },
  };
}

type EngineStatus = NonNullable<StatusReport["feed"]>["engine"];

function engineOf({ ranks, feeds }: FeedRoom): EngineStatus {
  const states = ranks.flatMap(({ engine }) => (engine === null ? [] : [engine]));
  if (states.length === 0) return null;
  const dropped = states.flatMap(({ counts }) => Object.values(counts.dropped));
  return {
    heard: states.filter(({ isHeard }) => isHeard).length,
    known: states.filter(({ isKnown }) => isKnown).length,
    blocks: feeds.engineBlocks.blocks,
    events: states.reduce((sum, { counts }) => sum + counts.events, 0),
    dropped: dropped.reduce((sum, count) => sum + count, 0),
    dropped_by: droppedBy(states.map(({ counts }) => counts)),
    block_tokens: states.find(({ blockTokens }) => blockTokens !== null)?.blockTokens ?? null,
    gaps: states.reduce((sum, { counts }) => sum + counts.gaps, 0),
  };
}

/** By reason, those that occurred. */
function droppedBy(all: readonly FeedCounts[]): Record<string, number> {
  const sums = DROP_REASONS.map((reason) => {
    return [reason, all.reduce((sum, { dropped }) => sum + dropped[reason], 0)] as const;
  });
  return Object.fromEntries(sums.filter(([, sum]) => sum > 0));
}

export function feedSnapshot(room: FeedRoom): FeedSnapshot {
  const { ranks } = room;
  const sum = (pick: (rank: (typeof ranks)[number]) => number | undefined) =>
    ranks.reduce((total, rank) => total + (pick(rank) ?? 0), 0);
  return {
    changes: sum(({ feed }) => feed.lastSequence),
    messages: {
      sent: sum(({ bus, stream }) => stream?.acknowledged ?? bus?.sent),
      unsent: sum(({ bus }) => bus?.unsent),
    },
    questions: {
      range: sum(({ bus }) => bus?.questions.ranges),
      snapshot: sum(({ bus }) => bus?.questions.snapshotParts),
      evicted: sum(({ bus }) => bus?.questions.evicted),
      busy: sum(({ bus }) => bus?.questions.busy),
      refused: sum(({ bus }) => bus?.questions.refused),
      dropped: sum(({ bus }) => bus?.questions.dropped),
    },
    snapshots: sum(({ bus }) => bus?.snapshots),
    storedSnapshots: sum(({ stream }) => stream?.storedSnapshots),
    restarts: room.restarts,
    ringBlocks: sum(({ feed }) => feed.ring.blocks),
    engineBlocks: room.feeds.engineBlocks.blocks,
    streamBehind: sum(({ stream }) => stream?.behind),
    streamHoles: sum(({ stream }) => stream?.holes),
    zmqSubscribers: sum(({ zmq }) => zmq?.subscribers),
    zmqDropped: sum(({ zmq }) => zmq?.dropped),
  };
}
