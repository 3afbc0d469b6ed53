import { expect, test } from "bun:test";
import { AnswerSink } from "../../../src/peers/transports/quic/index.ts";
import { encodeAnswer, withLength } from "../../../src/peers/wire/index.ts";

const ANSWER = withLength(encodeAnswer({ op: "busy", retryAfterMs: 7 }));

test("an answer over QUIC is the last data on its stream", () => {
  const whole = new AnswerSink({ op: "find", names: [] });
  expect(whole.take(ANSWER.subarray(0, 3))).toBeNull();
  expect(whole.take(ANSWER.subarray(3))).toBeNull();
  expect(whole.answer).toEqual({ op: "busy", retryAfterMs: 7 });
  for (const at of [0, 3, ANSWER.length - 1]) {
    const more = new AnswerSink({ op: "find", names: [] });
    expect(more.take(ANSWER.subarray(0, at))).toBeNull();
    const fault = more.take(Buffer.concat([ANSWER.subarray(at), Uint8Array.of(0)]));
    expect(fault).toMatchObject({ kind: "protocol" });
    expect(more.isComplete).toBe(false);
  }
});
