/** Caps and times of one socket. */
export interface ZmtpLimits {
  readonly frameBytesMax: number;
  readonly messageBytesMax: number;
  readonly framesMax: number;
  /** Of what waits to be sent on one connection. */
  readonly queueBytesMax: number;
  readonly queueMessagesMax: number;
  /** Connections of a socket that listens; further ones are closed at once. */
  readonly peersMax: number;
  readonly subscriptionsMax: number;
  readonly topicBytesMax: number;
  /** From dialling to the end of the handshake. */
  readonly handshakeMs: number;
  /** A peer of ZMTP 3.1 is asked for a sign of life after so long a silence... */
  readonly pingMs: number;
  /** ...and is given up after this one. */
  readonly silenceMs: number;
  /** Between two dials: the first wait, doubled each time up to the last; ±25 %. */
  readonly redialFirstMs: number;
  readonly redialMaxMs: number;
}

export const ZMTP_LIMITS: ZmtpLimits = {
  frameBytesMax: 16 * 1024 * 1024,
  messageBytesMax: 32 * 1024 * 1024,
  framesMax: 64,
  queueBytesMax: 32 * 1024 * 1024,
  queueMessagesMax: 100_000,
  peersMax: 256,
  subscriptionsMax: 1_024,
  topicBytesMax: 1_024,
  handshakeMs: 10_000,
  pingMs: 10_000,
  silenceMs: 30_000,
  redialFirstMs: 100,
  redialMaxMs: 10_000,
};
