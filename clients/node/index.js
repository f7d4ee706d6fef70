// SPDX-License-Identifier: MIT
'use strict';
module.exports = { ...require('./fingerprint.js'), ...require('./inbox.js') };
