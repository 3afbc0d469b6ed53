/** Frames of one message; the first of a PUB's message is its topic. */
export type ZmtpMessage = readonly Uint8Array[];

/**
 * `connecting`: so far, or again, nobody answers; of a socket that listens: nobody is connected.
 * `closed` is the end.
 */
export interface ZmtpState {
  readonly status: "connecting" | "connected" | "closed";
  /** Why it is not connected, in words for people; null while it is. */
  readonly why: string | null;
  /**
   * The other end is there but silent: the last connection ended, or the latest dial waits, without
   * a word from it. False after a refused or a closed connection: then the process itself is gone.
   */
  readonly isHung: boolean;
  /** Connections that were made, the first included: a larger number means something was missed. */
  readonly connections: number;
  readonly received: number;
  /** Connections that were ended for what came: no ZMTP at all, too long, or of a wrong kind. */
  readonly refused: number;
}

/** What of a socket can be held back while its reader is behind. Outlives a broken connection. */
export interface ZmtpFlow {
  /** Reads no more: the peer's own queue fills, then it drops. A few messages may still come. */
  pause(): void;
  resume(): void;
}

/**
 * A socket that subscribes a publisher (SUB). Connects to `tcp://host:port` or `ipc://path`, again
 * and again with growing waits until closed; subscriptions outlive each break. What was published
 * meanwhile is lost: that is for sequence numbers to tell. Where publishers connect, it listens.
 */
export interface ZmtpSubscriber extends AsyncDisposable, ZmtpFlow {
  /** As it listens, its port included; where it connects, where to. */
  readonly endpoint: string;
  readonly state: ZmtpState;
}

/**
 * A socket that asks a ROUTER (DEALER). One message each way is a list of frames, the empty
 * delimiter of the envelope included: nothing is added or taken away.
 */
export interface ZmtpDealer extends AsyncDisposable, ZmtpFlow {
  readonly state: ZmtpState;
  /** False: there is no connection, or more waits already than may; it was not sent. */
  send(frames: ZmtpMessage): boolean;
}

/** A socket that others subscribe (PUB). Whoever reads too slowly misses messages, counted. */
export interface ZmtpPublisher extends AsyncDisposable {
  /** As it listens, its port included. */
  readonly endpoint: string;
  /** Those that have asked for something. */
  readonly subscribers: number;
  /** Messages times subscribers. */
  readonly dropped: number;
  publish(frames: ZmtpMessage): void;
}

/** A socket that answers DEALERs (ROUTER). */
export interface ZmtpRouter extends AsyncDisposable {
  readonly endpoint: string;
}

/** Answers go to whoever asked, for as long as its connection lives; false: it is gone or full. */
export type ZmtpReply = (frames: ZmtpMessage) => boolean;
