import { ROOT } from "./paths.ts";

export interface RunResult {
  readonly ok: boolean;
  readonly code: number;
  /** Both streams, in the order in which they were read. */
  readonly output: string;
  readonly ms: number;
}

export interface RunOptions {
  readonly env?: Record<string, string | undefined>;
  readonly cwd?: string;
  /** Also shows the output while it runs. */
  readonly echo?: boolean;
}

/**
 * Runs a program to its end and keeps what it printed. A program that cannot start has code 127.
 */
export async function run(command: string[], options: RunOptions = {}): Promise<RunResult> {
  const started = performance.now();
  const done = (code: number, output: string): RunResult => {
    return { ok: code === 0, code, output, ms: performance.now() - started };
  };
  const chunks: string[] = [];
  try {
    const child = Bun.spawn(command, {
      cwd: options.cwd ?? ROOT,
      env: options.env ?? process.env,
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
    const drain = async (stream: ReadableStream<Uint8Array>, out: NodeJS.WriteStream) => {
      const decoder = new TextDecoder();
      for await (const bytes of stream) {
        chunks.push(decoder.decode(bytes, { stream: true }));
        if (options.echo) out.write(bytes);
      }
    };
    await Promise.all([drain(child.stdout, process.stdout), drain(child.stderr, process.stderr)]);
    return done(await child.exited, chunks.join(""));
  } catch (thrown) {
    return done(127, `${chunks.join("")}${thrown instanceof Error ? thrown.message : thrown}\n`);
  }
}

/** 1234 → `"1.2 s"`. */
export function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1)} s`;
}
