import { type HeaderPairs, towardsClient } from "../headers.ts";
import type { UpstreamAnswer } from "../upstream/index.ts";

type Bytes = Uint8Array<ArrayBuffer>;

/** A worker's headers for its client, with others beside them; null: they cannot be sent. */
export function clientHeaders(raw: HeaderPairs, more: HeaderPairs): Headers | null {
  const headers = new Headers();
  try {
    for (const [name, value] of [...towardsClient(raw), ...more]) headers.append(name, value);
    return headers;
  } catch {
    return null;
  }
}

/** Whether an answer is a stream of events that can be read here. */
export function isEventStream(headers: HeaderPairs): boolean {
  const find = (name: string) => headers.find(([one]) => one.toLowerCase() === name)?.[1];
  const isPlain = (find("content-encoding") ?? "identity") === "identity";
  return isPlain && (find("content-type") ?? "").startsWith("text/event-stream");
}

/** Statuses whose answers have no body. */
export const WITHOUT_BODY: ReadonlySet<number> = new Set([204, 205, 304]);

/** An answer as it comes, for requests that are no load and are counted nowhere. */
export function passOn(answer: UpstreamAnswer, headers: Headers): Response {
  const { status } = answer;
  if (WITHOUT_BODY.has(status)) {
    answer.close();
    return new Response(null, { status, headers });
  }
  const body = new ReadableStream<Bytes>(
    {
      async pull(controller) {
        const piece = await answer.read();
        if (piece.kind === "bytes") controller.enqueue(piece.bytes);
        else if (piece.kind === "end") controller.close();
        else controller.error(new Error(piece.why));
      },
      cancel: () => answer.close(),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { status, headers });
}
