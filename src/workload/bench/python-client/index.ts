export { benchPythonClient } from "./client-bench.ts";
