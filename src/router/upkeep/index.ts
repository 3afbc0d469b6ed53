export { RouterUpkeep, type UpkeepOptions } from "./upkeep.ts";
