import type { Stream } from "./module.ts";

/** Ends a stream in both directions so that the other side learns the code. */
export function tearStream(stream: Stream, code: number): void {
  if (stream.destroyed) return;
  const { resetStream, stopSending } = stream as Stream & {
    resetStream?(code: number): void;
    stopSending?(code: number): void;
  };
  // What `destroy` does with the code depends on what the stream was used for.
  resetStream?.call(stream, code);
  stopSending?.call(stream, code);
  stream.destroy(undefined, { code });
}
