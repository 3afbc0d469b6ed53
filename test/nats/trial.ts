import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Chaos, type ChaosOptions } from "./chaos.ts";
import { type Figures, figuresOf, violationsOf } from "./report.ts";
import { runStream, type StreamResult } from "./stream.ts";

export interface TrialOptions extends ChaosOptions {
  /** Of the stream's part; 0: without it. */
  readonly streamCommands: number;
  /** Also what takes half a minute. */
  readonly thorough: boolean;
}

export interface Trial {
  readonly figures: Figures;
  readonly violations: readonly string[];
}

/** The broker killed under traffic, then commands that a stream keeps. */
export async function runTrial(options: TrialOptions): Promise<Trial> {
  const startMs = performance.now();
  const { executable, folder, seed, carrier, thorough, onProgress } = options;
  const [chaosFolder, streamFolder] = ["c", "s"].map((name) => join(folder, name)) as [
    string,
    string,
  ];
  mkdirSync(chaosFolder);
  mkdirSync(streamFolder);
  await using chaos = await Chaos.start({ ...options, folder: chaosFolder });
  const result = await chaos.run();
  let stream: StreamResult | null = null;
  if (options.streamCommands > 0) {
    onProgress("a stream of commands");
    const { streamCommands: commands } = options;
    const own = { commands, thorough, folder: streamFolder };
    stream = await runStream({ executable, seed, carrier, ...own });
  }
  const figures = figuresOf(result, stream, (performance.now() - startMs) / 1_000);
  const findings = [...result.oracle.findings, ...(stream?.oracle.findings ?? [])];
  return { figures, violations: violationsOf(figures, findings) };
}
