import type { AddressBatch, BlockStore, HandleBatch, Holder } from "../store/index.ts";
import type { SessionInfo } from "../store/pins/index.ts";
import { answerOne, greetedOf } from "./answers.ts";
import type { Connection } from "./connection.ts";
import type { EngineLimits } from "./limits.ts";
import {
  decodeSessionCommitRequest,
  decodeSessionListRequest,
  decodeSessionRequest,
  encodeSessionListReply,
  encodeSessionStatusReply,
  type Frame,
  HEADER_BYTES,
  Op,
  Outcome,
  type Refusal,
  type SessionItem,
  sessionsInFrame,
} from "./protocol/index.ts";

interface Context {
  readonly store: BlockStore;
  readonly limits: EngineLimits;
}

interface Scratch {
  readonly batch: AddressBatch;
  readonly handles: HandleBatch;
  readonly session: { session: bigint };
}

type Handler = (connection: Connection, frame: Frame, holder: Holder) => Refusal | null;

/** What engines ask about conversations. */
export function sessionHandlers(
  { store, limits }: Context,
  scratch: Scratch,
): Partial<Record<number, Handler>> {
  const { batch, handles, session } = scratch;
  const listing = { session: 0n, after: 0, max: 0 };
  const listMax = sessionsInFrame(limits.frameBytesMax, HEADER_BYTES);
  return {
    [Op.sessionCommit]: (connection, frame, holder) => {
      const bad = decodeSessionCommitRequest(frame, session, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      answerOne(connection, frame, handles, holder.sessionCommit(session.session, batch));
      return null;
    },
    [Op.sessionRelease]: (connection, frame, holder) => {
      const bad = decodeSessionRequest(frame, session);
      if (bad !== null) return bad;
      answerOne(connection, frame, handles, holder.sessionRelease(session.session));
      return null;
    },
    [Op.sessionStatus]: (connection, frame, holder) => {
      const bad = decodeSessionRequest(frame, session);
      if (bad !== null) return bad;
      const status = holder.sessionStatus(session.session);
      encodeSessionStatusReply(connection.output, frame.requestId, {
        outcome: status.known ? Outcome.ok : Outcome.miss,
        blocks: status.blocks,
        tokens: status.blocks * greetedOf(connection).blockTokens,
        bytes: status.bytes,
      });
      return null;
    },
    [Op.sessionList]: (connection, frame, holder) => {
      const bad = decodeSessionListRequest(frame, listing);
      if (bad !== null) return bad;
      const { session: only, after, max } = listing;
      const page = holder.sessionList(only, after, Math.min(max || listMax, listMax));
      encodeSessionListReply(connection.output, frame.requestId, {
        next: page.next ?? 0,
        sessions: page.sessions.map(sessionItemOf),
      });
      return null;
    },
  };
}

function sessionItemOf({ session, idleMs, state: { ram, ssd } }: SessionInfo): SessionItem {
  return {
    session,
    idleMs: Math.floor(idleMs),
    ramBlocks: ram.blocks,
    ramBytes: ram.bytes,
    ssdBlocks: ssd.blocks,
    ssdBytes: ssd.bytes,
  };
}
