import { expect, test } from "bun:test";
import { bindPublisher } from "../../../src/events/zmtp/index.ts";
import { waitFor } from "../../support/index.ts";
import { bytes, clock, collect, random, texts } from "./support.ts";

const MESSAGES = 20_000;

test("a paused subscriber gets nothing, then everything in order", async () => {
  const endpoint = "tcp://127.0.0.1:0";
  await using publisher = await bindPublisher({ clock, random, endpoint });
  await using subscriber = collect(publisher.endpoint);
  await waitFor(() => publisher.subscribers === 1);
  subscriber.pause();
  for (let i = 0; i < MESSAGES; i++) publisher.publish([bytes("t"), bytes(String(i))]);
  for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
  const early = subscriber.messages.length;
  // What was read before the pause may still come.
  expect(early).toBeLessThan(MESSAGES / 2);
  subscriber.resume();
  await waitFor(() => subscriber.messages.length === MESSAGES, 60_000);
  expect(subscriber.messages.map((message) => Number(texts(message)[1]))).toEqual(
    Array.from({ length: MESSAGES }, (_, i) => i),
  );
});
