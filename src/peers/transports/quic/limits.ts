const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** What bounds a QUIC transport. Times in milliseconds, lengths in bytes. */
export interface QuicLimits {
  /** Links of others to us: in all, of one worker, and from one address. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  readonly addressLinksMax: number;
  readonly handshakeMs: number;
  /** Requests under way that are answered here: of one link, and in all. */
  readonly linkRequestsMax: number;
  readonly requestsMax: number;
  /** The longest that a request is worked on here, whatever the asker says. */
  readonly requestMs: number;
  /** Without a byte for so long, a request is over. */
  readonly stallMs: number;
  /** How often a link shows that it lives, and after how much silence it is given up. */
  readonly keepAliveMs: number;
  readonly silentMs: number;
  /** How often it is looked whether the certificate of a link has ended. */
  readonly judgeMs: number;
  /** A link of ours on which nothing was asked for so long is closed. */
  readonly idleMs: number;
  /** For so long after the last word of a peer, a link to it may begin with a pull. */
  readonly ticketMs: number;
  /** How long links of others may go on with old certificates after new ones were read. */
  readonly reloadMs: number;
  /** How long a link or a listener may take to close before it is torn down. */
  readonly closeMs: number;
  /** What is written at once: more than this makes the runtime slow. */
  readonly pieceBytes: number;
  /** What may wait in the runtime to be sent on one stream. */
  readonly waitingBytes: number;
  /** Of UDP sockets, as far as the kernel lets. */
  readonly socketBytes: number;
  /** Memory of finished streams that the runtime has not taken back: then it is made to. */
  readonly litterBytes: number;
  /** For those who are told to come again. */
  readonly retryAfterMs: number;
}

export const QUIC_LIMITS: QuicLimits = {
  linksMax: 256,
  workerLinksMax: 8,
  addressLinksMax: 64,
  handshakeMs: 5_000,
  linkRequestsMax: 64,
  requestsMax: 1_024,
  requestMs: 120_000,
  stallMs: 5_000,
  keepAliveMs: 2_000,
  silentMs: 6_000,
  judgeMs: 5_000,
  idleMs: 10_000,
  ticketMs: 30_000,
  reloadMs: 30_000,
  closeMs: 1_000,
  pieceBytes: 64 * KIB,
  waitingBytes: 64 * KIB,
  socketBytes: 4 * MIB,
  litterBytes: 16 * MIB,
  retryAfterMs: 100,
};
