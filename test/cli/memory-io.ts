import type { Io, Sink } from "../../src/cli/index.ts";

export interface MemoryIo extends Io {
  outText(): string;
  errText(): string;
}

/** Outputs that keep the text written to them. */
export function memoryIo(
  terminal: { readonly out?: boolean; readonly err?: boolean; readonly columns?: number } = {},
): MemoryIo {
  const written = { out: "", err: "" };
  const sink = (name: "out" | "err", isTerminal: boolean): Sink => ({
    write(text) {
      written[name] += text;
    },
    isTerminal,
    columns: terminal.columns ?? 100,
  });
  return {
    out: sink("out", terminal.out ?? false),
    err: sink("err", terminal.err ?? false),
    outText: () => written.out,
    errText: () => written.err,
  };
}
