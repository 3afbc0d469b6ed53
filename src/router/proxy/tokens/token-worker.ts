import { systemClock } from "../../../core/index.ts";
import type { TokenOrder } from "./protocol.ts";
import { TokenServer } from "./token-server.ts";

/**
 * Entry point of the tokenising thread. A separate thread is used because a long prompt takes tens
 * of milliseconds.
 */

declare const self: Worker;

const server = new TokenServer(systemClock);

self.onmessage = ({ data }: MessageEvent<TokenOrder>) => {
  const answer = server.answer(data);
  self.postMessage(answer, answer.kind === "tokens" ? [answer.tokens.buffer] : []);
};
