export type { Carrier } from "./broker.ts";
export type { Encoding } from "./command-load.ts";
export {
  benchControl,
  type ControlBenchOptions,
  type ControlBenchResult,
} from "./control-bench.ts";
export { parentInTree } from "./prune-tree.ts";
