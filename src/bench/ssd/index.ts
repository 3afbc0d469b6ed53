export type { DiskMethod } from "./bench-tier.ts";
export { benchSsdFiles, type SsdFilesOptions, type SsdFilesResult } from "./files-bench.ts";
export { serveFilesBench } from "./files-child.ts";
export { Fio } from "./fio.ts";
export { benchSsdSpeed, type SsdSpeedOptions, type SsdSpeedResult } from "./speed-bench.ts";
