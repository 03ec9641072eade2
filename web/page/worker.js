// A worker: trains policies for games, one for each of its seeds, or a language model. The runs take one iteration each
// in turn. Several workers may share a run: rank 0 leads and reports, the others follow its commands.

import { adapterName } from "./adapter.js";
import { sentence } from "./dom.js";
import { STEPS_PER_SECOND } from "./player.js";
import { toPlainData, fromPlainData } from "./checkpoints.js";
import { importTrainer } from "./trainer.js";

/** Milliseconds between two policies of a run that are sent to the page. */
const POLICY_MS = 300;
/** Milliseconds between two messages with records: each takes time of the page, and the page takes a processor. */
const RECORDS_MS = 100;
/** Milliseconds between two checkpoints of a run. */
const SAVE_MS = 4000;
/** Milliseconds between two answers to the visitor's prompt. */
const ANSWER_MS = 600;
/** Milliseconds between two pauses in which messages arrive. */
const YIELD_MS = 50;
/** Milliseconds between two pictures of the wall, on a GPU and on a software adapter. */
const FRAME_MS = 15;
const SOFTWARE_FRAME_MS = 90;

/** The commands of the leader to all workers that share a run. */
const [STOP, ITERATE, SAVE] = [0, 1, 2];

const runs = [];
let trainsGames = false; // whether policies for games are trained
let memory; // of the module, which grows
let reportedBytes; // of the memory, as the page knows it
let isPaused = false;
let isTraining = false;
let question;
let answeredAt = -Infinity;
let wall;

/** Runs tasks one after another: the module does one thing at a time. */
let lastTask = Promise.resolve();
function inTurn(task) {
  const done = lastTask.then(task);
  lastTask = done.catch(() => {});
  return done;
}

/** Lets messages arrive between two iterations; a timer would cost milliseconds each time. */
const yieldNow = () => new Promise((done) => {
  if (performance.now() - yieldedAt < YIELD_MS) return done();
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); yieldedAt = performance.now(); done(); };
  port2.postMessage(0);
});
let yieldedAt = 0;

let moduleLoad;

/** The module, started; it is fetched once, before a run is asked for if the page says so. */
const loadModule = (name) => (moduleLoad ??= fetchModule(name));

async function fetchModule(name) {
  const module = await importTrainer(name);
  const { memory } = await module.default();
  return { ...module, memory };
}

/** Creates or resumes the runs of the seeds, or this worker's part of them, reports their devices and first records,
    and trains them. */
async function start({ module, seedRuns, gpu, place, paused, question: firstQuestion }) {
  trainsGames = module === "train";
  isPaused = paused;
  question = firstQuestion;
  try {
    const { Training, Saved, Place, ...loadedModule } = await loadModule(module);
    memory = loadedModule.memory;
    const ownPlace = () => place && new Place(place.memory, place.rank, place.size);
    for (const { seed, text, saved, file } of seedRuns) {
      const training = saved ? await Training.resume(fromPlainData(Saved, saved), file, gpu, ownPlace()) : await Training.create(text, file, gpu, ownPlace());
      if (!training) return close(); // the run has too few shards for this worker
      const run = { seed, training, iteration: saved?.iteration ?? 0, news: [], recordsSentAt: -Infinity, policySentAt: -Infinity, savedAt: -Infinity };
      runs.push(run);
      if (!isLeader()) continue;
      const about = JSON.parse(training.about());
      run.software = about.software;
      if (about.api === "WebGPU") about.device = await adapterName();
      postMessage({ is: "about", seed, about });
      if (!trainsGames) continue;
      await sendPolicy(run);
      if (!saved) postMessage({ is: "records", seed, news: [JSON.parse(await training.first())] });
    }
    if (isLeader()) sendMemory();
  } catch (error) {
    return postMessage({ is: "refused", why: sentence(error) });
  }
  await proceed();
}

const isLeader = () => runs.every(({ training }) => training.rank() === 0);
const proceed = () => (isLeader() ? train() : follow());

/** Follows the commands of the leader, until it stops or fails. */
async function follow() {
  const [{ training }] = runs;
  try {
    for (;;) {
      const command = training.next(STOP);
      if (command === STOP) return;
      if (command === ITERATE) await training.iterate();
      else (await training.save()).free();
    }
  } catch {
    // The leader meets the same error, and reports it.
  }
}

/** Sends the size of the module's memory if it has grown. */
function sendMemory() {
  if (memory.buffer.byteLength === reportedBytes) return;
  reportedBytes = memory.buffer.byteLength;
  postMessage({ is: "memory", bytes: reportedBytes });
}

/** Sends the records since the last time, and the completions of a language model. */
function sendRecords(run) {
  sendMemory();
  if (run.news.length === 0) return;
  postMessage({ is: "records", seed: run.seed, news: run.news });
  run.news = [];
  run.recordsSentAt = performance.now();
}

/** Sends a checkpoint as plain data, for the browser's storage. */
async function save(run) {
  run.training.next(SAVE);
  const saved = toPlainData(await run.training.save());
  run.savedAt = performance.now();
  run.savedIteration = run.iteration;
  sendRecords(run);
  postMessage({ is: "saved", seed: run.seed, saved });
}

async function sendPolicy(run) {
  const file = await run.training.file();
  run.policySentAt = performance.now();
  run.sentIteration = run.iteration;
  sendRecords(run);
  postMessage({ is: "policy", seed: run.seed, iteration: run.iteration, file }, [file.buffer]);
}

async function sendFile() {
  try {
    const file = await runs[0].training.file();
    postMessage({ is: "file", file }, [file.buffer]);
  } catch (error) {
    postMessage({ is: "file", why: sentence(error) });
  }
}

/** Answers the visitor's prompt by the current model. */
function answer() {
  if (!question || runs.length === 0) return;
  const { prompt, numSamples } = question;
  answeredAt = performance.now();
  try {
    postMessage({ is: "answers", prompt, answers: JSON.parse(runs[0].training.answer(prompt, numSamples)) });
  } catch (error) {
    postMessage({ is: "answers", prompt, why: sentence(error) });
    question = undefined;
  }
}

/** Does some work of a run, whose error ends the run. */
async function attempt(run, work) {
  try {
    await work(run);
  } catch (error) {
    run.hasFailed = true;
    sendRecords(run);
    postMessage({ is: "failed", seed: run.seed, iteration: run.iteration, why: sentence(error) });
  }
}

async function iterate(run) {
  run.training.next(ITERATE);
  const news = JSON.parse(await run.training.iterate());
  run.iteration = news.record.iteration;
  run.news.push(news);
  const now = performance.now();
  if (now - run.recordsSentAt > RECORDS_MS) sendRecords(run);
  if (trainsGames && now - run.policySentAt > POLICY_MS) await sendPolicy(run);
  if (now - answeredAt > ANSWER_MS) answer();
  if (!run.training.is_done() && now - run.savedAt > SAVE_MS) await save(run);
}

/** Sends all that is new of a run before a pause or at its end. */
async function finishRun(run) {
  sendRecords(run);
  if (trainsGames && run.sentIteration < run.iteration) await sendPolicy(run);
  if (!run.training.is_done() && run.savedIteration !== run.iteration && run.iteration > 0) await save(run);
  run.training.next(STOP);
}

const intactRuns = () => runs.filter((run) => !run.hasFailed);
const unfinishedRuns = () => intactRuns().filter((run) => !run.training.is_done());

async function train() {
  if (isTraining) return;
  isTraining = true;
  while (!isPaused && unfinishedRuns().length > 0) {
    for (const run of unfinishedRuns()) {
      await inTurn(() => attempt(run, iterate));
      await yieldNow();
      if (isPaused) break;
    }
  }
  for (const run of intactRuns()) await inTurn(() => attempt(run, finishRun));
  isTraining = false;
  answer();
  postMessage({ is: unfinishedRuns().length > 0 ? "paused" : "done" });
}

/** Draws a wall of games from the device's memory, until another wall replaces it or it is closed. */
async function showWall({ canvas, games, calm }) {
  const [{ training, software }] = runs;
  const ownWall = (wall = { steppedAt: -Infinity });
  try {
    await inTurn(() => training.show(canvas, games));
    while (wall === ownWall) {
      await inTurn(() => drawWall(training, ownWall, calm));
      await new Promise((done) => setTimeout(done, software ? SOFTWARE_FRAME_MS : FRAME_MS));
      await new Promise((done) => requestAnimationFrame(done)); // none while the tab is hidden
    }
  } catch (error) {
    if (wall !== ownWall) return;
    wall = undefined;
    postMessage({ is: "no wall", why: sentence(error) });
  }
}

/** Draws the wall once: plays a step when one is due, and shows its motion. */
function drawWall(training, shownWall, calm) {
  const now = performance.now();
  if ((now - shownWall.steppedAt) * STEPS_PER_SECOND >= 1000) {
    training.step();
    shownWall.steppedAt = now;
  }
  training.draw(calm ? 1 : ((now - shownWall.steppedAt) * STEPS_PER_SECOND) / 1000);
}

onmessage = ({ data }) => {
  if (data.do === "load") {
    // An error is reported by the run that needs the module.
    loadModule(data.module).then(() => postMessage({ is: "loaded" }), () => { moduleLoad = undefined; });
  }
  if (data.do === "start") start(data);
  if (data.do === "pause") isPaused = true;
  if (data.do === "continue") {
    isPaused = false;
    proceed();
  }
  if (data.do === "ask") {
    question = data.question;
    inTurn(answer);
  }
  if (data.do === "file" && runs.length > 0) inTurn(sendFile);
  if (data.do === "wall") showWall(data);
  if (data.do === "no wall") wall = undefined;
};
