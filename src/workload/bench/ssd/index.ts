export { makeBenchFolder } from "./bench-folder.ts";
export type { DiskMethod } from "./bench-tier.ts";
export { benchSsdFiles, type SsdFilesOptions, type SsdFilesResult } from "./files-bench.ts";
export { serveFilesBench } from "./files-child.ts";
export { Fio, type FioOptions } from "./fio.ts";
export { benchSsdSpeed, type SsdSpeedOptions, type SsdSpeedResult } from "./speed-bench.ts";
