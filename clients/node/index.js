// SPDX-License-Identifier: MIT
'use strict';
const { WORDS, clean, written, ...message } = require('./message.js'); // those three are the inbox's own
module.exports = { ...require('./fingerprint.js'), ...require('./inbox.js'), ...message };
