import { expect, test } from "bun:test";
import { oldestOfMost } from "../../../src/peers/transports/control-channel/index.ts";

test("connections from one address do not end the handshake of another", () => {
  const from = (remoteAddress: string, nth: number) => ({ remoteAddress, nth });
  const peer = from("10.0.0.1", 0);
  const strangers = [1, 2, 3].map((nth) => from("10.0.0.9", nth));
  expect(oldestOfMost([peer, ...strangers])).toBe(strangers[0]!);
  expect(oldestOfMost([peer])).toBe(peer);
});
